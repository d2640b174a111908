"""Translates with TensorFlow Serving's REST API. Needs only Python.

python translate.py [--url=URL] [--name=MODEL] [--to=LANGUAGE] [SENTENCE ...]
                                            (or sentences on standard input, one a line)
"""

import argparse
import io
import json
import os
import sys
import urllib.error
import urllib.request

from lingvo_moe.core.console import install
from lingvo_moe.core.lines import cut_warning, decode_lines

if __name__ == "__main__":
    install((OSError, ValueError))  # one-line errors


def predict(url, name, sentences, languages, timeout=600):
    """Calls the model's signature, which returns lists: `translations`, `scores` and `left_out`.

    Raises:
        ValueError: the server refuses the request, for example for an unknown language, or its
            answer is not that of an export.
        OSError: the server cannot be reached.
    """
    address = f"{url.rstrip('/')}/v1/models/{name}:predict"
    # The columnar format ("inputs"), because all sentences have the same languages.
    body = {"signature_name": "serving_default", "inputs": {"sentences": sentences, **languages}}
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise ValueError(f"{address}: {_reason(error)}") from error
    except urllib.error.URLError as error:
        raise OSError(f"{address} cannot be reached ({error.reason}).") from error
    outputs = answer.get("outputs") if isinstance(answer, dict) else None
    if not isinstance(outputs, dict) or len(outputs.get("translations", ())) != len(sentences):
        raise ValueError(f"{address} is no export of lingvo-moe: its answer is {answer!r:.80}.")
    return outputs


def _reason(error):
    try:
        text = str(json.load(error)["error"])
    except (ValueError, LookupError, TypeError):
        text = error.reason
    _, _, asserted = text.partition("assertion failed: [")
    said = asserted.partition("]")[0] or next(iter(text.splitlines()), "no reason given")
    return f"{said.strip()} (status {error.code})"


def main():
    """Prints the best translation of each sentence, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentences", nargs="*")
    parser.add_argument("--url", default="http://localhost:8501", help="of the server")
    parser.add_argument("--name", default="translator", help="of the model on it")
    parser.add_argument("--to", default="en", help="target language (default: en)")
    parser.add_argument("--source_language", help="for models that route by it")
    parser.add_argument("--batch_size", type=int, default=64)
    args = parser.parse_args()
    if args.batch_size < 1:
        parser.error(f"--batch_size must be >= 1, got {args.batch_size}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    languages = {"target_language": args.to}
    if args.source_language:
        languages["source_language"] = args.source_language
    if args.sentences:
        sentences = list(decode_lines(map(os.fsencode, args.sentences), "the arguments"))
    else:
        sentences = list(decode_lines(sys.stdin.buffer, "standard input"))
    left_out: dict[int, int] = {}
    for start in range(0, len(sentences), args.batch_size):
        batch = sentences[start : start + args.batch_size]
        outputs = predict(args.url, args.name, batch, languages)
        for best in outputs["translations"]:
            print(best[0])
        for number, tokens in enumerate(outputs.get("left_out", ()), start + 1):
            left_out |= {number: tokens} if tokens else {}
    if left_out:
        print(cut_warning(left_out), file=sys.stderr)


if __name__ == "__main__":
    main()
