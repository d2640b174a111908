"""Translates with TensorFlow Serving's REST API. Needs only Python.

python translate.py [--url=URL] [--name=MODEL] [--to=LANGUAGE] [SENTENCE ...]
                                            (or sentences on standard input, one a line)
python translate.py [--url=URL] [--name=MODEL] --to=LANGUAGE --score=TRANSLATIONS < SENTENCES

--set gives an option, such as --set=beam_size=8; about.json lists all with their defaults.
"""

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path

from lingvo_moe.core.console import install
from lingvo_moe.serving.client_command import parser, run

if __name__ == "__main__":
    install((OSError, ValueError))  # one-line errors

ABOUT = Path(__file__).with_name("about.json")


class Model:
    """A model on a server; a client_command.Service."""

    def __init__(self, url, name, languages, about, timeout=600):
        """Nothing is sent yet.

        Args:
            url: of the server.
            name: of the model on it.
            languages: the inputs target_language and, for models that need it, source_language.
            about: the attributes of a Service.
            timeout: seconds for an answer.
        """
        self._address = f"{url.rstrip('/')}/v1/models/{name}:predict"
        self._languages, self._timeout = languages, timeout
        self.options, self.part_pieces, self.pairs, self.forms, self.penalties = (
            about[name] for name in ("options", "part_pieces", "pairs", "forms", "penalties")
        )

    def sizes(self, sentences):
        """Numbers of tokens."""
        return self.predict("count_pieces", "output_0", texts=sentences)["output_0"]

    def target_sizes(self, translations):
        """Numbers of tokens."""
        return self.predict("count_target_pieces", "output_0", texts=translations)["output_0"]

    def translate(self, sentences, options):
        """The outputs of the signature."""
        # All options are given, because not every version of TensorFlow Serving uses defaults.
        given = {**self.options, **options} if options else {}
        signature = "with_options" if options else "serving_default"
        return self.predict(
            signature, "translations", sentences=sentences, **given, **self._languages
        )

    def score(self, sentences, translations):
        """The outputs of the signature."""
        texts = {"sentences": sentences, "translations": translations}
        return self.predict("score", "tokens", **texts, **self._languages)

    def predict(self, signature, result, **inputs):
        """The outputs of a signature, as lists; a single output has the name output_0.

        Args:
            signature: its name.
            result: the name of an output that it must have.
            **inputs: its inputs; the first has as many texts as the outputs.

        Raises:
            ValueError: the server refuses the request, for example for an unknown language, or its
                answer is not that of an export.
            OSError: the server cannot be reached.
        """
        address = self._address
        # The columnar format ("inputs"), because all sentences have the same languages.
        body = {"signature_name": signature, "inputs": inputs}
        sent = json.dumps(body).encode(), {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(address, *sent)
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{address}: {_reason(error)}") from error
        except urllib.error.URLError as error:
            raise OSError(f"{address} cannot be reached ({error.reason}).") from error
        except http.client.HTTPException as error:
            raise OSError(
                f"{address} gives no answer in HTTP ({type(error).__name__}: {error}). Give the "
                f"address of the server's REST API, such as --url=http://localhost:8501."
            ) from error
        outputs = answer.get("outputs") if isinstance(answer, dict) else None
        if isinstance(outputs, list):  # of a signature with one output
            outputs = {"output_0": outputs}
        count = len(next(iter(inputs.values())))
        if not isinstance(outputs, dict) or len(outputs.get(result, ())) != count:
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
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--url", default="http://localhost:8501", help="of the server")
    flags.add_argument("--name", default="translator", help="of the model on it")
    args = flags.parse_args()
    languages = {"target_language": args.to}
    if args.source_language:
        languages["source_language"] = args.source_language
    about = json.loads(ABOUT.read_text(encoding="utf-8"))
    run(args, Model(args.url, args.name, languages, about))


if __name__ == "__main__":
    main()
