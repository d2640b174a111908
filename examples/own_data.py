"""Training on text from memory: an iterable of (pair, source, target) for each split.

python examples/own_data.py DATA LOGDIR     # two new directories
"""

import sys

import lingvo_moe as lm

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def examples(start, stop):
    """Numbers as words: the source "4 2" has the target "four two"."""
    for number in range(start, stop):
        digits = list(str(number))
        yield "xx-en", " ".join(digits), " ".join(NUMBERS[int(digit)] for digit in digits)


if __name__ == "__main__":
    data, logdir = sys.argv[1:]
    lm.prepare(
        {"train": examples(0, 5000), "dev": examples(5000, 5050), "test": examples(5050, 5100)},
        output=data,
        source_vocab_size=300,
        target_vocab_size=300,
    )
    lm.train("tiny.MoE", data=data, logdir=logdir, set={"train.max_steps": 100})
