"""Sentences that are none of nano's business: it answers them with "sorry" or not at all."""

import random

SENTENCES = (
    "what time is it", "what is the weather like today", "tell me a joke", "play some music",
    "how are you", "how are you doing today", "where do you live", "how old are you",
    "what day is it today", "what is the date today", "do you like music", "sing me a song",
    "turn on the light", "turn off the radio", "open the door", "close the window",
    "what is the capital of france", "who is the president", "how far is the moon",
    "i went to the market yesterday", "my sister lives in london", "the cat is on the table",
    "i would like a cup of coffee", "can you help me with my homework", "where are my keys",
    "what should i cook for dinner", "read me the news", "set an alarm for six in the morning",
    "remind me to call my mother", "the train leaves at nine", "i have two dogs and a cat",
    "there are seven apples in the basket", "it is five o'clock", "she bought three books",
    "what is three times four", "what is ten divided by two", "multiply six by seven",
    "what is the square root of nine", "what is your favorite color", "what is your job",
    "who is your best friend", "what is the name of your dog", "who made you", "are you a robot",
    "do you speak french", "say something nice", "tell me a story", "tell me about yourself",
    "what do you think", "that is very interesting", "i do not know", "i am so tired today",
    "let us go for a walk", "the sky is blue", "this is a test", "my car is broken",
    "how much does it cost", "how much is a ticket", "how do i get to the station",
    "where can i buy bread", "when does the shop open", "why is the sky blue",
    "what is for lunch", "what is new", "what is going on", "what is that noise",
    "can you dance", "can you hear me", "can you swim", "please wait a moment",
    "please sit down", "please send an email", "please call me back tomorrow",
    "count me in", "you can count on me", "i counted the money", "the story goes on",
    "there is a bus stop over there", "a dog barked all night", "we are moving next month",
    "i forgot my umbrella", "it might rain later", "take the second street on the left",
    "he plays the piano every day", "summer is my favorite season", "i need a new phone",
    "could you repeat the question", "say that again", "tell me more", "good idea",
    "what a lovely day", "have a nice day", "happy birthday", "merry christmas", "excuse me",
    "i think so", "maybe later", "not right now", "never mind", "of course", "who knows",
    "what is love", "is it raining", "are we there yet", "do you want some tea",
    "spell your last name", "what is my name", "who am i", "what can you do", "guess what",
    "name three animals", "name a color", "name the months of the year", "what month is it",
    "what year is it", "how many people live in paris", "how many days are in a year",
    "how tall is the tower", "translate this into german", "search for cheap flights",
    "book a table for four", "order a pizza", "pay the bill", "find my phone",
    "start the washing machine", "make it louder", "turn it up", "turn it down", "pause the video",
)  # fmt: skip

_SUBJECTS = (
    "the teacher", "my brother", "a farmer", "the old man", "our neighbor", "the doctor", "she",
    "he", "the children", "my friend", "the captain", "a little girl", "the engineer", "everybody",
)  # fmt: skip
_VERBS = (
    "found", "lost", "painted", "forgot", "bought", "sold", "wanted", "liked", "carried", "broke",
    "opened", "cleaned", "borrowed", "described", "watched", "built",
)  # fmt: skip
_OBJECTS = (
    "a red bicycle", "the letter", "an old house", "the garden", "a bowl of soup", "some flowers",
    "the newspaper", "a wooden chair", "the blue car", "a loaf of bread", "the radio",
    "a photograph",
    "the kitchen window", "a heavy box", "the green jacket", "a long story",
)  # fmt: skip
_WHEN = ("", "", " yesterday", " last week", " in the morning", " at night", " again", " for me")
_ASK = (
    "where is {}", "do you know {}", "have you seen {}", "tell me about {}", "what is {}",
    "can you bring me {}", "who has {}", "how old is {}", "please describe {}", "i really like {}",
    "what color is {}", "can you find {}",
)  # fmt: skip


def other_sentence(rng: random.Random) -> str:
    """A sentence that asks for nothing nano can do: from the list, or put together."""
    draw = rng.random()
    if draw < 0.55:
        return rng.choice(SENTENCES)
    if draw < 0.8:
        subject, verb, thing = rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS)
        return f"{subject} {verb} {thing}{rng.choice(_WHEN)}"
    return rng.choice(_ASK).format(rng.choice(_OBJECTS))


def other_words() -> set[str]:
    """Every word of these sentences."""
    forms = (*SENTENCES, *_SUBJECTS, *_VERBS, *_OBJECTS, *_WHEN, *_ASK)
    return {w for form in forms for w in form.split() if w != "{}"}
