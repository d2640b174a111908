"""Translating sentences, and scoring given translations.

python examples/translate_and_score.py LOGDIR en 'a sentence' 'another'
"""

import sys

import lingvo_moe as lm

if __name__ == "__main__":
    directory, language, *sentences = sys.argv[1:]  # a logdir
    model = lm.load(directory)
    translated = model.translate(sentences, to=language, n_best=4)
    for sentence, best in zip(sentences, translated, strict=True):
        print(sentence)
        for translation in best:
            (given,) = model.score([sentence], [translation.text], to=language)
            print(f"{translation.score:9.4f}  {translation.text}  (log P {given.log_prob:.3f})")
            print("           " + " ".join(given.tokens))
