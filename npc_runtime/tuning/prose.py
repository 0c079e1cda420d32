"""Two texts of our own: one to measure with, and another to find out what matters to a model when it reads.

They have nothing in common, so that quality is not measured on what a file was made with.
"""

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

PLAIN_TALK = """\
Guard: Halt. Nobody goes through the east gate after the bell. State your name and your business.
Traveller: I'm only a tinker. I mend pots, kettles, hinges, anything that is made of iron and has seen better days.
Guard: A tinker at midnight? What is in the cart?
Traveller: Tin, solder, a little charcoal, two blankets and my dinner. You may look, if you leave me the dinner.
Guard: Very well. But mind the dog, he bites when it rains.

"How much for the blue one?" she asked, holding the bowl up against the light. "Forty," said the potter. "For the
blue one and the chipped one together I could say fifty-five, but don't tell my wife." They both laughed. In the end
she paid fifty and got a candle as well.

First boil the water, then add the barley and a pinch of salt. Stir it every few minutes, or it will burn at the
bottom. After half an hour put in the onions, the carrots and whatever is left of yesterday's meat. If it is too
thin, wait; if it is too thick, add a cup of water. It should be enough for six people, or for four who have been
ploughing.

Innkeeper: We have three rooms free. The one above the stable is warm but it smells; the one under the roof is clean
but you'll hear the wind. The third has a ghost in it, so I let it for half the price.
Guest: What does the ghost do?
Innkeeper: Counts. Every night from one to three hundred and twelve, and then he sighs and starts again. He was a
tax collector.
Guest: I'll take the stable.

The old road runs north from the harbour for eleven miles, crosses the Wend by a stone bridge of five arches, and
climbs into the forest. There it divides. The left branch goes to the quarries, which have been closed since the
flood of 1862; the right one goes on to Saint Orla, a town of about four thousand people with a market on Thursdays,
a school, and the only doctor in the valley. In winter you should not try either of them without a guide.

Smith: That blade is older than both of us. Where did you find it?
Knight: In the hand of a man who no longer needed it. Can you put an edge on it again?
Smith: I can put an edge on anything. Whether it will keep one is another question. See these little cracks near the
hilt? Somebody heated it too quickly, long ago. I would hang it on a wall and buy a new one.
Knight: I did not ask what you would do.
Smith: No. They never do. Come back tomorrow, before noon, and bring silver.

Dear Maud, thank you for your letter, which arrived on Monday, and for the seeds, which arrived on Friday and had
been eaten by mice. Father is better. He sits up, complains about the soup, and asks for his pipe, so the doctor
says that we may stop worrying. Yes, I have heard about Edwin; no, I don't believe a word of it. Please send more
wool if you can, the grey kind. I miss you. Your loving sister, Joan.

Witch: Three questions, and then you leave the way you came. Don't waste them.
Child: Is it true that you can turn people into toads?
Witch: Yes. That was one.
Child: Does it hurt?
Witch: Nobody has ever complained. Toads are polite. That was two.
Child: Then why do you look so sad?
Witch: Hm. You are cleverer than your brother. Sit down. This will take a while, and there is cake.

Rules of the ferry: passengers stand in the middle. Horses are led, not ridden. Whoever falls in pays for the rope.
The ferryman is always right while the boat is on the water, and may be argued with, politely, on land. One copper
each way, two after dark, nothing for midwives.

Captain: Report.
Scout: Two dozen of them, sir, camped behind the ridge. Six horses, no wagons. They have posted a watch on the south
side only, and he's asleep.
Captain: Did anyone see you?
Scout: A goat, sir. I don't think it will talk.
Captain: Good work. Get something to eat. We move at four, without lanterns, and the first man who sings will carry
the tents for the rest of the month.
"""
