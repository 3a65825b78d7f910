"""Print the lines that teach a shell to complete this command: subcommands, options, runs, files, and functions in files.

Nothing of torch is imported while a shell completes.
"""

from __future__ import annotations

import argparse

from sonde.errors import MissingExtraError

EXAMPLES = """
sonde completion bash >> ~/.bashrc   new shells of bash complete then
sonde completion zsh >> ~/.zshrc     the same for zsh, after compinit
sonde completion fish > ~/.config/fish/completions/sonde.fish
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to *parser*."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(options: argparse.Namespace) -> int:
    """Print the lines."""
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError:
        raise MissingExtraError.of("sonde completion", "argcomplete", "completion") from None
    print(shellcode(["sonde"], shell=options.shell))
    return 0
