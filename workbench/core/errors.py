"""Every error the workbench raises on purpose, in one tree.

WorkbenchError
├── LoadError                 a model cannot be taken in
│   ├── UnsupportedFormatError    not a format we read, or a version of it we do not
│   ├── UntrustedFileError        opening it could run code, and nobody said `trusted=True`
│   ├── MissingDataError          a part the model points at is not there
│   └── TooLargeError             it would not fit in the memory that is free
├── InputError                an input's name, dtype, shape or value is wrong
├── RecipeError               an engine, lever or value that does not exist
│   └── UnavailableError          it exists, but not on this device, model or set of packages
├── StudyError                a study folder cannot be used
│   └── SchemaTooNewError         written by a later version
├── RunError                  the scheduler or a worker cannot do its work
│   └── StoppedError              the user stopped it
└── ExportError               a variant cannot leave as a script

A message names what, where and the remedy, in one or two sentences.
"""

from __future__ import annotations


class WorkbenchError(Exception):
    """Base of every error raised on purpose."""


class LoadError(WorkbenchError):
    """A model cannot be taken in."""


class UnsupportedFormatError(LoadError):
    """The file is of no format, or of no version of one, that we read."""


class UntrustedFileError(LoadError):
    """Opening the file could run code from it, and it was not declared trusted."""


class MissingDataError(LoadError):
    """A part that the model points at is not there."""


class TooLargeError(LoadError):
    """The model would not fit in the memory that is free."""


class InputError(WorkbenchError):
    """An input's name, dtype, shape or value is wrong."""


class RecipeError(WorkbenchError):
    """An engine, lever or value that does not exist."""


class UnavailableError(RecipeError):
    """A lever's value exists, but not on this device, model or set of packages."""


class StudyError(WorkbenchError):
    """A study folder cannot be used."""


class SchemaTooNewError(StudyError):
    """The study was written by a later version."""


class RunError(WorkbenchError):
    """The scheduler or a worker cannot do its work."""


class StoppedError(RunError):
    """The user stopped the work."""


class ExportError(WorkbenchError):
    """A variant cannot leave as a script."""
