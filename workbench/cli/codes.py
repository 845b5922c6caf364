"""What the command's exit codes mean; `docs/cli.md` has the same table."""

from __future__ import annotations

from workbench.core import errors

OK, NOT_WELL, USAGE, LOAD, FAILED, STUDY, EXPORT, RUN, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130
# The first kind that fits decides.
EXITS: tuple[tuple[type[errors.WorkbenchError], int], ...] = (
    (errors.LoadError, LOAD),
    (errors.InputError, LOAD),
    (errors.RecipeError, USAGE),
    (errors.StudyError, STUDY),
    (errors.ExportError, EXPORT),
    (errors.RunError, RUN),
)
EPILOG = """\
exit codes:
  0    done
  1    doctor: something that is needed is missing
  2    a command, option, engine, lever or value that does not exist
  3    the model, its inputs or a trace cannot be taken in
  4    it ran, and some variant failed; the others are kept
  5    the study cannot be opened, or was written by a later version
  6    the variant cannot be exported
  7    the scheduler cannot do its work
  130  stopped by Ctrl-C; what was measured is kept
"""
