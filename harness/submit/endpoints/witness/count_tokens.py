"""Counts tokens of texts: a program that runs in any environment with the package `tokenizers`.

Reads lines, each a JSON list of texts, and answers each with a JSON list of counts. Argument: tokenizer.json.
"""

import json
import sys


def main() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(sys.argv[1])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for line in sys.stdin:
        rows = tokenizer.encode_batch(json.loads(line), add_special_tokens=False)
        sys.stdout.write(json.dumps([len(row.ids) for row in rows]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
