# Read by CMake right after llama-cpp-python's project() call (CMAKE_PROJECT_INCLUDE): builds llama.cpp itself and
# nothing that we do not use. The binding forces the "common" library (chat parsers, HTTP) into the CMake cache; a normal
# variable of the same name wins over a cache entry (policy CMP0126), and so leaves it out. Saves most of the build time.
set(LLAMA_BUILD_COMMON OFF)

# AMX: no consumer CPU has it, and virtual machines were seen that announce it and then trap on it (SIGILL in
# tileloadd). Everything else that this CPU offers stays on (GGML_NATIVE).
add_compile_options(-U__AMX_INT8__ -U__AMX_BF16__ -U__AMX_TILE__)
