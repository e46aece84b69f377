"""Short sentences of a closed vocabulary, for generated speech.

A sentence is a template filled with words. It belongs to one split, the one
that its hash names, so that no two splits share a sentence.
"""

import hashlib

import numpy as np

_WORDS = {
    'verb': 'open close bring find paint carry hold sell wash',
    'deed': 'likes wants makes takes needs draws counts loves',
    'color': 'red blue green yellow black white brown silver',
    'number': 'two three four five six seven eight nine ten',
    'adjective': 'old new small large broken quiet cold happy',
    'object': (
        'door window table chair lamp bottle basket hammer picture garden'
    ),
    'things': 'apples books flowers boats horses letters stones shoes',
    'animal': 'dog cat bird fish rabbit monkey tiger',
    'name': 'anna peter maria thomas david susan oliver laura',
    'place': 'london paris berlin boston madrid tokyo',
    'day': 'monday tuesday friday sunday',
    'time': 'today tomorrow tonight again now together',
    'motion': 'runs walks sleeps sings waits',
    'where': 'under behind near inside',
    'device': 'radio music heating camera',
    'switch': 'on off up down',
    'weather': 'rain snow wind thunder',
}
_TEMPLATES = (
    '{verb} the {color} {object}',
    'please {verb} the {adjective} {object}',
    '{verb} {number} {color} {things}',
    '{name} {deed} {number} {things}',
    '{name} {deed} {adjective} {things} {time}',
    'the {color} {animal} {motion} {where} the {object}',
    'my {adjective} {animal} {motion} {time}',
    'turn the {device} {switch} {time}',
    'meet {name} in {place} on {day}',
    'call {name} at {number} {time}',
    'there is {weather} in {place} {time}',
    '{name} goes to {place} {time}',
    '{number} {animal} pictures for {name}',
    'add {number} and {number} please',
)


def split_of(sentence: str) -> str:
  """Returns the only split whose speakers say a sentence."""
  digit = hashlib.sha256(sentence.encode()).digest()[0] % 8
  return {0: 'dev', 1: 'test'}.get(digit, 'train')


def draw(
    rng: np.random.Generator, *, split: str, count: int
) -> tuple[str, ...]:
  """Returns `count` distinct sentences of one speaker, by a taste of its own.

  Args:
    rng: Decides the taste and the sentences.
    split: The split that the sentences must belong to.
    count: How many.
  """

  def taste(size: int) -> np.ndarray:
    weights = np.exp(rng.normal(size=size))
    return weights / weights.sum()

  words = {kind: text.split() for kind, text in _WORDS.items()}
  word_taste = {kind: taste(len(options)) for kind, options in words.items()}
  template_taste = taste(len(_TEMPLATES))
  sentences: dict[str, None] = {}
  while len(sentences) < count:
    template = _TEMPLATES[rng.choice(len(_TEMPLATES), p=template_taste)]
    sentence = ' '.join(
        words[token[1:-1]][
            rng.choice(len(words[token[1:-1]]), p=word_taste[token[1:-1]])
        ]
        if token.startswith('{')
        else token
        for token in template.split()
    )
    if split_of(sentence) == split:
      sentences[sentence] = None
  return tuple(sentences)
