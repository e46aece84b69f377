"""Tables and formulas of docstrings, for the site: an extension of griffe.

In a docstring a table, a formula or a list of symbols is a paragraph indented
by two spaces. Markdown takes four for text as it stands, and would run its
lines together.
"""

import re
from typing import Any

import griffe

_SECTION = re.compile('[A-Z][a-z]+:\n')


class PreformattedExtension(griffe.Extension):
  """Indents such paragraphs by four spaces."""

  def on_object(self, *, obj: griffe.Object, **unused: Any) -> None:
    """Changes the docstring of a module, class, function or attribute."""
    if obj.docstring is not None:
      obj.docstring.value = preformatted(obj.docstring.value)


def preformatted(docstring: str) -> str:
  """Returns a docstring with indented paragraphs as code for Markdown.

  Args:
    docstring: As `inspect.cleandoc` gives it. Paragraphs of its sections, such
      as Args, stay as they are.
  """
  paragraphs, in_section = [], False
  for paragraph in docstring.split('\n\n'):
    lines = paragraph.splitlines()
    is_indented = all(line.startswith('  ') for line in lines)
    if _SECTION.match(paragraph):
      in_section = True
    elif not is_indented:
      in_section = False
    elif not in_section:
      paragraph = '\n'.join(f'  {line}' for line in lines)
    paragraphs.append(paragraph)
  # References, a line each.
  return re.sub(r'(?<!\n)\n(?=\[\d+\] )', '  \n', '\n\n'.join(paragraphs))
