"""Translates with TensorFlow Serving's REST API. Needs only Python.

python translate.py [--url=URL] [--name=MODEL] [--to=LANGUAGE] [SENTENCE ...]
                                            (or sentences on standard input, one a line)
python translate.py [--url=URL] [--name=MODEL] --to=LANGUAGE --score=TRANSLATIONS < SENTENCES

--set gives an option, such as --set=beam_size=8; options.json lists all with their defaults.
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

OPTIONS = Path(__file__).with_name("options.json")


class Model:
    """A model on a server; a client_command.Service."""

    def __init__(self, url, name, languages, options, timeout=600):
        """Nothing is sent yet.

        Args:
            url: of the server.
            name: of the model on it.
            languages: the inputs target_language and, for models that need it, source_language.
            options: the default of each option of a request.
            timeout: seconds for an answer.
        """
        self._address = f"{url.rstrip('/')}/v1/models/{name}:predict"
        self._languages, self.options, self._timeout = languages, options, timeout

    def sizes(self, sentences):
        """Numbers of characters, because the vocabulary is on the server."""
        return list(map(len, sentences))

    target_sizes = sizes

    def translate(self, sentences, options):
        """The outputs of the signature."""
        # All options are given, because not every version of TensorFlow Serving uses defaults.
        given = {**self.options, **options} if options else {}
        signature = "with_options" if options else "serving_default"
        return self.predict(signature, "translations", sentences=sentences, **given)

    def score(self, sentences, translations):
        """The outputs of the signature."""
        return self.predict("score", "tokens", sentences=sentences, translations=translations)

    def predict(self, signature, result, **inputs):
        """The outputs of a signature, as lists.

        Args:
            signature: its name.
            result: the name of an output that it must have.
            **inputs: its inputs without the languages.

        Raises:
            ValueError: the server refuses the request, for example for an unknown language, or its
                answer is not that of an export.
            OSError: the server cannot be reached.
        """
        address = self._address
        # The columnar format ("inputs"), because all sentences have the same languages.
        body = {"signature_name": signature, "inputs": {**inputs, **self._languages}}
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
        count = len(inputs["sentences"])
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
    flags = parser(__doc__.splitlines()[0], "characters", 8192)
    flags.add_argument("--url", default="http://localhost:8501", help="of the server")
    flags.add_argument("--name", default="translator", help="of the model on it")
    args = flags.parse_args()
    languages = {"target_language": args.to}
    if args.source_language:
        languages["source_language"] = args.source_language
    options = json.loads(OPTIONS.read_text(encoding="utf-8"))
    run(args, Model(args.url, args.name, languages, options))


if __name__ == "__main__":
    main()
