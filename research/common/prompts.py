"""Questions as people put them to a hub at home: closed ones, vague ones, open ones, lists, several parts at once.

Made of forms and subjects, so that there are enough to learn lengths from and none occurs twice. A form that is held
out of what is learnt from is a kind of question that the model of lengths has never seen.
"""

from __future__ import annotations

import random
from typing import List, NamedTuple

PLACES = (
    "France",
    "Japan",
    "Peru",
    "Kenya",
    "Norway",
    "Egypt",
    "Canada",
    "Vietnam",
    "Portugal",
    "Chile",
    "Poland",
    "Morocco",
    "Iceland",
    "Nepal",
    "Cuba",
)
THINGS = (
    "a heat pump",
    "a bicycle",
    "the moon",
    "bread",
    "a refrigerator",
    "a volcano",
    "the heart",
    "a battery",
    "a compass",
    "glass",
    "a hurricane",
    "soap",
    "a microwave oven",
    "the internet",
    "a violin",
    "salt",
)
TOPICS = (
    "climate change",
    "inflation",
    "poverty",
    "sleep",
    "the Roman Empire",
    "photosynthesis",
    "electric cars",
    "jazz",
    "democracy",
    "loneliness",
    "the printing press",
    "vaccines",
    "coffee",
    "chess",
    "migration",
)
TASKS = (
    "grow tomatoes on a balcony",
    "learn a language",
    "repair a flat tyre",
    "save money",
    "fall asleep faster",
    "cook rice",
    "write a letter of application",
    "train a puppy",
    "clean a window",
    "start running",
    "plan a birthday party",
    "sharpen a knife",
)
ROOMS = ("kitchen", "bedroom", "hall", "garden", "bathroom", "garage", "attic", "study")
PEOPLE = (
    "William Shakespeare",
    "Marie Curie",
    "Isaac Newton",
    "Cleopatra",
    "Mozart",
    "Frida Kahlo",
    "Alan Turing",
    "Florence Nightingale",
    "Gandhi",
    "Leonardo da Vinci",
)
FOODS = ("rice and beans", "potatoes", "a cauliflower", "leftover chicken", "lentils", "eggs", "spinach", "mushrooms")
PAIRS = (
    "cats and dogs",
    "tea and coffee",
    "solar and wind power",
    "trains and buses",
    "cotton and wool",
    "books and films",
    "cities and villages",
    "lakes and seas",
)

FORMS = (
    # closed: a word or a sentence
    ("What is the capital of {}?", PLACES),
    ("Which language do people speak in {}?", PLACES),
    ("Is {} in Europe? Answer yes or no.", PLACES),
    ("Where was {} born?", PEOPLE),
    ("Who was {}?", PEOPLE),
    ("In which century did {} live?", PEOPLE),
    ("Switch on the light in the {}.", ROOMS),
    ("It is too cold in the {}.", ROOMS),
    ("Set the heating in the {} to 21 degrees.", ROOMS),
    ("Name one ingredient of a dish with {}.", FOODS),
    ("Say one word about {}.", TOPICS),
    ("Translate into Spanish: I would like to have {}.", FOODS),
    ("Is {} heavy?", THINGS),
    # one fact or a definition
    ("What is {}?", THINGS),
    ("Define {} in one sentence.", TOPICS),
    ("When was {} discovered or invented?", THINGS),
    ("What is the population of {}?", PLACES),
    ("What does {} cost?", THINGS),
    # how and why
    ("How does {} work?", THINGS),
    ("Why do people care about {}?", TOPICS),
    ("Explain {} to a child.", TOPICS),
    ("How do I {}?", TASKS),
    ("What should I cook with {}?", FOODS),
    ("Why is {} important?", TOPICS),
    ("How can somebody in {} {}?", PLACES, TASKS),
    ("What could go wrong when I {}?", TASKS),
    # open
    ("Tell me about the history of {}.", TOPICS),
    ("What are the causes and consequences of {}?", TOPICS),
    ("Write a short story about {}.", THINGS),
    ("Write a poem about {}.", TOPICS),
    ("Tell me something about {}.", PLACES),
    ("What do you think about {}?", TOPICS),
    ("Describe a day in the life of {}.", PEOPLE),
    ("Give me some advice on {} and things like that.", TOPICS),
    ("Tell me a joke about {}.", THINGS),
    # lists and several parts
    ("List five facts about {}.", PLACES),
    ("Give me three tips to {}.", TASKS),
    ("What are the advantages and disadvantages of {}?", TOPICS),
    ("Compare {}.", PAIRS),
    ("What is the difference between {}?", PAIRS),
    ("Write a shopping list for a meal with {}.", FOODS),
    ("What is {}, who invented it, and how is it used today?", THINGS),
    ("Plan a week in {}: what should I see, where should I eat, and how do I get around?", PLACES),
    ("First explain {}, then say why it matters, and finally give an example.", TOPICS),
)


class Prompt(NamedTuple):
    """One question, and the number of its form in :data:`FORMS`."""

    text: str
    form: int


def prompts(count: int, seed: int = 1) -> List[Prompt]:
    """So many different questions, forms in turn, the same for the same seed. Raises ValueError where there are not
    so many."""
    draw = random.Random(f"{seed}/prompts")
    piles: List[List[str]] = []
    for text, *fillings in FORMS:
        made = [text.format(*filling) for filling in _all(fillings)]
        draw.shuffle(made)
        piles.append(made)
    found: List[Prompt] = []
    while len(found) < count:
        before = len(found)
        for form, pile in enumerate(piles):
            if pile and len(found) < count:
                found.append(Prompt(pile.pop(), form))
        if len(found) == before:
            raise ValueError(f"{count} prompts are asked for, and there are {before}")
    draw.shuffle(found)
    return found


def _all(fillings: List[tuple]) -> List[tuple]:
    rows: List[tuple] = [()]
    for filling in fillings:
        rows = [(*row, value) for row in rows for value in filling]
    return rows
