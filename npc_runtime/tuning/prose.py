"""A page of plain prose that nobody was trained on: what speed is measured with, and part of what quality is."""

PROSE = """\
The mill at Harrow Ford had stopped in the last week of autumn, and nobody in the village could agree on the reason.
The miller said that the river was low. His wife said that the wheel had a cracked spoke and that he was too proud
to let the cartwright see it. The children, who knew most things before anyone else did, said that something was
sitting on the axle, and that it was the size of a calf and did not like to be looked at.

Ansel came over the bridge on a wet evening with two mules and a load of lamp oil. He was not a brave man, but he
was a curious one, and he had learned on the road that curiosity gets a man fed more often than courage does. He
tied the mules under the eaves of the chapel, shook the rain from his hat, and asked the first person he met whether
there was a bed to be had and what all the whispering was about.

"There is a bed," said the woman, "if you don't mind sharing the room with onions. As for the other matter, you had
better ask my brother. He went to look on Tuesday, and he has not said a sensible word since."

The brother was sitting by the stove with his boots off. He was a broad, slow fellow with flour in his eyebrows, and
he was carving a spoon that had long ago become too thin to hold soup. When Ansel asked him what he had seen, he
thought about it for as long as it takes to fill a pipe.

"It was asleep," he said at last. "I could hear it breathing under the floor. It breathes about four times in an
hour. So I thought, if I were that tired, I would not want to be woken by the likes of me. And I went home."

"That seems sensible enough," said Ansel.

"That is what I told them. But they wanted me to have fought it."

In the morning the rain had moved off to the east, and the hills stood so clear that one could count the sheep on
them. Ansel walked down to the mill with a loaf, a lantern and a length of rope, because in his experience those
three things will get a person out of nearly anything. The door was open. The stones were still, and the dust on the
floor lay smooth except for one line of footprints which went in, stopped, and came out again rather faster.

He sat down on a sack and listened. At first there was only the water, talking to itself in the race. Then, from
below, came a long breath, like a tide drawing back over gravel. He counted slowly, and he had reached nine hundred
before the next one came. Whatever it was, it was in no hurry.

There are two ways of dealing with a thing one does not understand. One is to make it go away, and the other is to
find out what it wants. The first is quicker and nearly always costs more. Ansel broke the loaf in half, put one
half on the edge of the trapdoor, and began to eat the other. He told the dark about the price of oil in the coast
towns, about the winter when the passes froze, and about a mule he had once owned that would only walk behind a red
coat. He had got as far as the coat when he noticed that the bread was gone.

"Thank you," said a voice under the floor. It was a small voice for such a large breath. "Nobody has told me
anything for a very long time. I did not mean to stop the wheel. I was cold, and the axle was warm, and when I woke
up everyone was afraid. Is the mule still alive?"

"She is tied up at the chapel," said Ansel, "and she is eating somebody's hedge. Would you like to meet her?"

There was a pause. Then, for the first time in eleven days, the great wheel at Harrow Ford creaked, shivered, and
turned a hand's breadth in the stream.
"""
