"""Programs that run as processes of their own, each by the interpreter that has what it needs."""
