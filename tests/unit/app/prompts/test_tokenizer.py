import subprocess
import sys

from kvmesh.app.prompts.tokenizer import ByteTokenizer, load_tokenizer


def test_without_a_model_directory_bytes_are_tokens() -> None:
    tokenizer = load_tokenizer(None)

    assert isinstance(tokenizer, ByteTokenizer)
    assert list(tokenizer.encode("ab", add_special_tokens=False)) == [97, 98]


def test_what_reads_model_directories_is_loaded_with_the_first() -> None:
    program = (
        "import sys\nfrom kvmesh.app.prompts.tokenizer import load_tokenizer\n"
        "load_tokenizer(None)\n"
        "print(*{'jinja2', 'tokenizers'} & set(sys.modules))\n"
        "try: load_tokenizer('/nowhere')\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(*sorted({'jinja2', 'tokenizers'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["ConfigError", "jinja2", "tokenizers"]
