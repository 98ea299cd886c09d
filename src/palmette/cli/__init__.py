"""The command line, one file a command.

Standard output holds the answer and nothing else; progress, notes and errors go to standard error. Torch is imported
only by starting an engine, so that `--help`, wrong arguments and `palmette env` answer at once.
"""
