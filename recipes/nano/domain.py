"""The narrow English that nano speaks: what people say to it and what it answers.

Text is lower case without punctuation. A request carries its intent and up to two numbers, which
training uses as labels; the reply is the inner monologue the model learns.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from recipes.nano.smalltalk import other_sentence, other_words

UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
TENS = {20: "twenty", 30: "thirty", 40: "forty"}
MAX_NUMBER = 20
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
NAMES = (
    "ada", "ben", "clara", "david", "emma", "felix", "grace", "henry", "iris", "jack", "kate",
    "leo", "mia", "nano", "nora", "oscar", "ruby",
)  # fmt: skip
DEFAULT_NAME = "ada"  # without a text prompt, or with one that gives no name
GREETINGS = ("hello how can i help you", "hi there what can i do for you", "hello nice to meet you")
THANKS_REPLY = "you are welcome"
BYE_REPLY = "goodbye"
SORRY_REPLY = "sorry i did not understand that"

INTENTS = (
    "none", "greet", "name", "count", "countdown", "plus", "minus", "days", "repeat", "thanks",
    "bye", "stop", "back", "other",
)  # fmt: skip
NO_NUMBER = MAX_NUMBER + 1


def number(n: int) -> str:
    """English words for -40..40; negative numbers start with "minus"."""
    if n < 0:
        return "minus " + number(-n)
    if n < 20:
        return UNITS[n]
    tens, unit = n // 10 * 10, n % 10
    return TENS[tens] + (" " + UNITS[unit] if unit else "")


@dataclass(frozen=True)
class Request:
    """One thing a person says. `a` and `b` are -1 where the intent has no such number."""

    intent: str
    text: str
    a: int = -1
    b: int = -1


_GREET = (
    "hello", "hello", "hi", "hi", "hi there", "hello there", "hey", "hey there", "good morning",
    "good afternoon", "good evening", "hey hello",
)  # fmt: skip
_NAME = (
    "what is your name", "what's your name", "who are you", "tell me your name",
    "can you tell me your name", "please tell me your name",
)  # fmt: skip
_DAYS = (
    "name the days of the week", "what are the days of the week", "tell me the days of the week",
    "say the days of the week", "list the days of the week", "days of the week",
    "can you name the days of the week", "please name the days of the week",
)  # fmt: skip
_REPEAT = (
    "repeat {a}", "repeat {a}", "repeat the number {a}", "repeat after me {a}", "say {a}",
    "say the number {a}", "please repeat {a}", "can you repeat {a}", "please say {a}",
)  # fmt: skip
_THANKS = ("thank you", "thanks", "thanks a lot", "thank you very much", "okay thank you")
_BYE = ("goodbye", "bye", "bye bye", "see you later", "good night", "okay bye")
_STOP = (
    "stop", "stop", "stop", "please stop", "please stop", "okay stop", "okay stop", "stop please",
    "stop it", "stop now", "stop counting", "stop stop",
)  # fmt: skip
_BACK = (
    "okay", "okay", "yes", "uh huh", "uh huh", "right", "yeah", "yeah", "mm hmm", "no", "cool",
    "sure", "i see", "great", "nice",
)  # fmt: skip
_SUM = (
    "what is {a} {op} {b}", "what is {a} {op} {b}", "what's {a} {op} {b}", "what's {a} {op} {b}",
    "tell me {a} {op} {b}", "tell me {a} {op} {b}", "{a} {op} {b}", "please tell me {a} {op} {b}",
    "can you tell me {a} {op} {b}", "how much is {a} {op} {b}",
)  # fmt: skip
_COUNT_DOWN = ("down to", "down to", "down from", "backwards from", "backwards to")
_POLITE = ("", "", "please ", "can you ")

_WEIGHTS = {
    "plus": 16, "minus": 15, "count": 12, "countdown": 7, "repeat": 7, "greet": 9, "name": 6,
    "stop": 9, "back": 5, "thanks": 3, "bye": 5, "days": 3, "other": 11,
}  # fmt: skip


def random_request(
    rng: random.Random, intent: str | None = None, *, ordered: float = 0.8
) -> Request:
    """Draw a request, of the given intent or of a random one.

    `ordered` is the share of differences whose first number is the larger; of the others, half.
    """
    if intent is None:
        intent = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    a = rng.randint(0, MAX_NUMBER)
    b = rng.randint(0, MAX_NUMBER)
    match intent:
        case "plus":
            text = rng.choice(_SUM).format(a=number(a), op="plus", b=number(b))
            return Request(intent, text, a, b)
        case "minus":
            if rng.random() < ordered:
                a, b = max(a, b), min(a, b)
            text = rng.choice(_SUM).format(a=number(a), op="minus", b=number(b))
            return Request(intent, text, a, b)
        case "count":
            a = rng.randint(1, MAX_NUMBER)
            up = rng.choice(("", "", "up "))
            start = rng.choice(("", "", "", "from one "))
            return Request(intent, f"{rng.choice(_POLITE)}count {up}{start}to {number(a)}", a)
        case "countdown":
            a = rng.randint(1, MAX_NUMBER)
            form = rng.choice(_COUNT_DOWN)
            return Request(intent, f"{rng.choice(_POLITE)}count {form} {number(a)}", a)
        case "repeat":
            return Request(intent, rng.choice(_REPEAT).format(a=number(a)), a)
        case "other":
            return Request(intent, other_sentence(rng))
    fixed = {
        "greet": _GREET, "name": _NAME, "days": _DAYS, "thanks": _THANKS, "bye": _BYE,
        "stop": _STOP, "back": _BACK,
    }  # fmt: skip
    return Request(intent, rng.choice(fixed[intent]))


def greetings(text: str) -> tuple[int, ...]:
    """Which of `GREETINGS` may answer a greeting: "hi" to "hi" and "hey", else "hello"."""
    return (1,) if text.startswith(("hi", "hey")) else (0, 2)


def short_request(rng: random.Random) -> Request:
    """One of the words that only their first sound tells apart."""
    intent = rng.choice(("greet", "greet", "bye", "bye", "thanks"))
    text = {"greet": ("hi", "hi", "hey"), "bye": ("bye",), "thanks": ("thanks", "thank you")}
    return Request(intent, rng.choice(text[intent]))


def request_words() -> list[str]:
    """Every word of a request, in alphabetical order."""
    forms = (
        *_GREET, *_NAME, *_DAYS, *_REPEAT, *_THANKS, *_BYE, *_STOP, *_BACK, *_SUM, *_POLITE,
        *_COUNT_DOWN, *UNITS, *TENS.values(), *other_words(), "count up from to plus minus",
    )  # fmt: skip
    return sorted({w for form in forms for w in form.split() if "{" not in w})


def sum_reply(intent: str, a: int, b: int) -> str:
    """ "two plus three is five", "two minus one is one"."""
    result = a + b if intent == "plus" else a - b
    return f"{number(a)} {intent} {number(b)} is {number(result)}"


def name_reply(name: str) -> str:
    return f"my name is {name}"


def count_numbers(intent: str, a: int) -> list[int]:
    """The numbers said for "count to a" or "count down to a" (a .. 1)."""
    return list(range(1, a + 1)) if intent == "count" else list(range(a, 0, -1))


def reply_sentences() -> list[str]:
    """Every fixed reply sentence, once: the corpus of the text tokenizer."""
    out = [*GREETINGS, THANKS_REPLY, BYE_REPLY, SORRY_REPLY, " ".join(DAYS)]
    out += [name_reply(n) for n in NAMES]
    out += [number(n) for n in range(-MAX_NUMBER, 2 * MAX_NUMBER + 1)]
    out += [
        sum_reply(op, a, b)
        for op in ("plus", "minus")
        for a in range(MAX_NUMBER + 1)
        for b in range(MAX_NUMBER + 1)
    ]
    return out


def replies() -> Iterator[tuple[str, str, str]]:
    """Kind, key and text of everything the agent says, as often as it is recorded.

    Counts and days are made of single words: `item` is one that others follow, `last` the last.
    """
    for n in range(MAX_NUMBER + 1):
        yield from [("item", number(n), number(n))] * 8
        yield from [("last", number(n), number(n))] * 6
    for day in DAYS:
        yield from [("item", day, day)] * 6 + [("last", day, day)] * 2
    for op in ("plus", "minus"):
        for a in range(MAX_NUMBER + 1):
            for b in range(MAX_NUMBER + 1):
                yield "sum", f"{a} {op} {b}", sum_reply(op, a, b)
    for name in NAMES:
        yield from [("name", name, name_reply(name))] * 8
    for i, greeting in enumerate(GREETINGS):
        yield from [("greet", str(i), greeting)] * 12
    yield from [("thanks", "", THANKS_REPLY)] * 14
    yield from [("bye", "", BYE_REPLY)] * 14
    yield from [("sorry", "", SORRY_REPLY)] * 14
