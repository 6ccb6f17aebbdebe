"""Upstream-style shell read without running it: what would be executed, with which words and which environment.

``read_script`` follows a script as bash would (assignments, exports, arrays, arithmetic, defaults, loops, functions,
conditions that can be worked out) and records each outside command instead of starting it. Whatever depends on
something that was not run (command output, files on disk) is named by line in the notes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ms_recipe.errors import RecipeError
from ms_recipe.scripts.arith import NotArithmetic, evaluate
from ms_recipe.scripts.expand import Expander, line_of
from ms_recipe.scripts.tree import Note, mended, parse
from ms_recipe.scripts.values import Piece, Value, Variable, Word, flat, known

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOP_LIMIT = 1000
_DEPTH_LIMIT = 50
_LEFT_OVER = {"word", "string", "concatenation", "simple_expansion", "number", "raw_string", "file_redirect"}


@dataclass
class Command:
    """One outside command as bash would start it.

    ``env`` holds every exported variable at that moment, and the assignments in front of the command. ``pipe`` are
    the commands that its output goes to, ``outputs`` the files of ``tee`` and redirections, ``stderr_too`` whether
    standard error goes there as well.
    """

    words: list[Word]
    line: int
    env: dict[str, str] = field(default_factory=dict)
    pipe: list[list[str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    stderr_too: bool = False

    @property
    def argv(self) -> list[str]:
        """The words as bash would hand them over."""
        return [word.text for word in self.words]


@dataclass
class Script:
    """A shell script that was read: the commands it would start, in order, and what is to be said about it."""

    name: str
    commands: list[Command]
    notes: list[Note]
    variables: dict[str, str]
    exported: dict[str, str]
    sources: list[str]
    lines: dict[str, int]
    text: str


class _Jump(Exception):
    """``break``, ``continue``, ``return`` or ``exit``."""

    def __init__(self, kind: str, status: bool = True) -> None:
        super().__init__(kind)
        self.kind = kind
        self.status = status


Status = bool | None


class Reader(Expander):
    """Follows the statements of one script."""

    def __init__(self, text: str, name: str, environ: Mapping[str, str]) -> None:
        notes: list[Note] = []
        text = mended(text, notes)
        super().__init__(text.encode(), name, environ)
        self.notes += notes
        self.commands: list[Command] = []
        self.sources: list[str] = []
        self.assigned: dict[str, int] = {}
        self.functions: dict[str, Node] = {}
        self.outputs: list[str] = []
        self.depth = 0
        self.files: Status = None
        self.root = parse(text)

    def follow(self) -> None:
        """Read the script from its first statement to its end, or to its ``exit``."""
        if self.root.has_error:
            self._errors(self.root)
        try:
            self.block(self.root)
        except _Jump:
            pass
        except RecursionError:
            self.note_line(0, "skipped", "the script nests too deeply to be read")

    def _errors(self, node: Node) -> None:
        for child in node.children:
            if child.type == "ERROR" or child.is_missing:
                snippet = " ".join(self.text(child).split())[:60]
                what = f"bash does not understand {snippet!r}" if snippet else "something is missing"
                self.note(child, "syntax", what)
            elif child.has_error:
                self._errors(child)

    # -- statements --------------------------------------------------------------------------------------------
    def block(self, node: Node) -> Status:
        """All statements below ``node``; the status of the last."""
        status: Status = True
        for child in node.named_children:
            status = self.statement(child)
        return status

    def statement(self, node: Node) -> Status:
        """One statement; True or False as its exit status, None when that is not known."""
        handler: Callable[[Node], Status] | None = getattr(self, f"_do_{node.type}", None)
        if handler:
            return handler(node)
        if node.type in {"comment", "heredoc_body", "heredoc_redirect"}:
            return True
        if node.type == "ERROR":
            return self.block(node)
        if node.type in _LEFT_OVER:
            return None  # what is left of a statement with an error, which is noted already
        self.note(node, "skipped", f"{node.type.replace('_', ' ')} is not read")
        return None

    def _do_program(self, node: Node) -> Status:
        return self.block(node)

    _do_compound_statement = _do_do_group = _do_else_clause = _do_program

    def _do_subshell(self, node: Node) -> Status:
        before = {name: Variable(v.value, dict(v.array) if v.array is not None else None, v.exported, v.line)
                  for name, v in self.variables.items()}
        try:
            return self.block(node)
        except _Jump as jump:
            return jump.status
        finally:
            self.variables = before

    def _do_variable_assignment(self, node: Node) -> Status:
        self._assignment(node)
        return True

    def _do_variable_assignments(self, node: Node) -> Status:
        for child in node.named_children:
            self._assignment(child)
        return True

    def _assignment(self, node: Node) -> str:
        target = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if target is None:
            return ""
        append = any(child.type == "+=" for child in node.children)
        line = line_of(node)
        if target.type == "subscript":
            name = self.text(target.named_children[0])
            try:
                index = evaluate(self._numbers(self.text(target.named_children[1])), self.number)
            except (NotArithmetic, IndexError):
                self.note(node, "skipped", f"{self.text(target)} has a subscript that is no number")
                return name
            self.assign(name, self.expand(value) if value else [], line, index)
        else:
            name = self.text(target)
            if value is not None and value.type == "array":
                self._array_assignment(name, value, append, line)
            else:
                new = self.expand(value) if value else []
                old = self.variables.get(name)
                self.assign(name, (old.value if old and append else []) + new, line)
        self.assigned.setdefault(name, line)
        return name

    def _array_assignment(self, name: str, node: Node, append: bool, line: int) -> None:
        old = self._array(name) if append and name in self.variables else {}
        array: dict[int, Value] = dict(old)
        index = max(array, default=-1) + 1
        for child in node.named_children:
            if child.type == "comment":
                continue
            for word in self.words(child):
                array[index] = [Piece(word.text, scalar=word.scalar, unknown=word.unknown)]
                index += 1
        self.variables[name] = Variable([], array, False, line)

    def _do_declaration_command(self, node: Node) -> Status:
        keyword = self.text(node.children[0])
        options = [self.text(child) for child in node.children[1:] if self.text(child).startswith("-")]
        exports = keyword == "export" or (keyword in {"declare", "typeset"} and any("x" in o for o in options))
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                name = self._assignment(child)
            elif child.type == "variable_name":
                name = self.text(child)
            elif child.type in {"simple_expansion", "expansion", "string", "concatenation"}:
                self._assign_words(self.words(child), exports)
                continue
            else:
                continue
            if exports and name:
                self.variables.setdefault(name, Variable(line=line_of(node))).exported = True
                self.used.add(name)
            elif keyword == "local" and child.type == "variable_name":
                self.assign(name, [], line_of(node))
        return True

    def _assign_words(self, words: list[Word], exports: bool) -> None:
        for word in words:
            name, equals, value = word.text.partition("=")
            if equals and name.isidentifier():
                self.assign(name, [Piece(value, unknown=word.unknown)], word.line)
                self.variables[name].exported |= exports

    def _do_unset_command(self, node: Node) -> Status:
        for child in node.named_children:
            self.variables.pop(self.text(child), None)
        return True

    def _do_list(self, node: Node) -> Status:
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in {"&&", "||"}), "&&")
        status = self.statement(left)
        goes_on = status is not False if operator == "&&" else status is False
        return self.statement(right) if goes_on else status

    def _do_negated_command(self, node: Node) -> Status:
        status = self.statement(node.named_children[0])
        return None if status is None else not status

    def _do_test_command(self, node: Node) -> Status:
        opening = self.text(node.children[0])
        inner = [child for child in node.named_children if child.type != "comment"]
        if opening == "((":
            return self._true(self.arithmetic(node))
        return self._test(inner[0]) if inner else False

    def _true(self, number: str) -> Status:
        return int(number) != 0 if re.fullmatch(r"-?\d+", number) else None

    def _do_pipeline(self, node: Node) -> Status:
        members = node.named_children
        before = len(self.commands)
        status = self.statement(members[0])
        started = self.commands[before:]
        rest: list[Command] = []
        for member in members[1:]:
            at = len(self.commands)
            status = self.statement(member)
            rest += self.commands[at:]
            del self.commands[at:]
        for command in started:
            for follower in rest:
                command.pipe.append(follower.argv)
                if follower.argv and follower.argv[0] == "tee":
                    command.outputs += [word for word in follower.argv[1:] if not word.startswith("-")]
                command.outputs += follower.outputs
            if any(child.type == "|&" for child in node.children):
                command.stderr_too = True
        if not started and rest:
            self.commands += rest
        return None if started else status

    def _do_redirected_statement(self, node: Node) -> Status:
        body = node.child_by_field_name("body")
        before = len(self.commands)
        status = self.statement(body) if body is not None else True
        self._redirects(node, self.commands[before:])
        return status

    def _redirects(self, node: Node, commands: list[Command]) -> None:
        for child in node.children:
            if child.type != "file_redirect":
                continue
            destination = child.child_by_field_name("destination")
            operator = next((c.type for c in child.children if not c.is_named), ">")
            target = flat(self.expand(destination)) if destination else ""
            descriptor = child.child_by_field_name("descriptor")
            tee = re.search(r"^>\(\s*tee\s+(?:-a\s+)?([^)]*?)\s*\)$", target)
            of_stderr = descriptor is not None and self.text(descriptor) == "2"
            for command in commands:
                if operator == "&>" or (operator == ">&" and target == "1"):
                    command.stderr_too = True
                if operator in {">", ">>", "&>", "&>>"} and target != "/dev/null" and not of_stderr:
                    command.outputs.append(tee[1].strip("\"'") if tee else target)

    # -- control flow ------------------------------------------------------------------------------------------
    def _do_if_statement(self, node: Node) -> Status:
        condition, body, rest = _parts(node, "then")
        guard = any(self.text(n).split()[0:1] in (["exit"], ["return"]) for n in body)
        status = self._condition(condition, node, guard)
        if status is None:
            return None
        if status:
            return self._run([n for n in body if n.type not in {"elif_clause", "else_clause"}])
        for clause in (n for n in [*body, *rest] if n.type in {"elif_clause", "else_clause"}):
            if clause.type == "else_clause":
                return self.block(clause)
            condition, body, _ = _parts(clause, "then")
            status = self._condition(condition, clause, False)
            if status is None:
                return None
            if status:
                return self._run(body)
        return True

    def _run(self, nodes: list[Node]) -> Status:
        status: Status = True
        for node in nodes:
            status = self.statement(node)
        return status

    def _condition(self, nodes: list[Node], node: Node, guard: bool = False) -> Status:
        """Whether a condition holds. One that asks for files is taken as a fresh start would find it.

        A branch that leaves the script is a guard: it is taken not to hold. Other tests of files: there are none yet.
        """
        before = len(self.commands)
        status = self._run(nodes)
        if status is None and guard:
            status = False
        if status is None:
            self.files = False
            status = self._run(nodes)
            self.files = None
            if status is not None:
                self.note(node, "condition", f"{self._shown(nodes)!r}: taken as before the first run, without files")
        del self.commands[before:]
        if status is None:
            what = f"whether {self._shown(nodes)!r} holds is not known without running it: its branches are not read"
            self.note(node, "condition", what)
        return status

    def _shown(self, nodes: list[Node]) -> str:
        return " ".join(" ".join(self.text(child) for child in nodes).split())[:70]

    def _do_for_statement(self, node: Node) -> Status:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        values = [c for c in node.named_children if c not in (variable, body) and c.type != "comment"]
        words = [word for value in values for word in self.words(value)]
        if variable is None or body is None:
            return None
        for word in words[:_LOOP_LIMIT]:
            value = [Piece(word.text, scalar=word.scalar, unknown=word.unknown)]
            self.assign(self.text(variable), value, line_of(node))
            if self._loop_body(body):
                break
        return True

    def _loop_body(self, body: Node) -> bool:
        try:
            self.block(body)
        except _Jump as jump:
            if jump.kind not in {"break", "continue"}:
                raise
            return jump.kind == "break"
        return False

    def _do_while_statement(self, node: Node) -> Status:
        body = node.child_by_field_name("body")
        conditions = [child for child in node.named_children if child != body]
        until = self.text(node.children[0]) == "until"
        for _ in range(_LOOP_LIMIT):
            status = self._condition(conditions, node)
            if status is None or body is None or status == until:
                return True
            if self._loop_body(body):
                return True
        self.note(node, "skipped", "a loop that does not end here is read no further")
        return None

    def _do_c_style_for_statement(self, node: Node) -> Status:
        self.note(node, "skipped", "for (( )) is not read")
        return None

    def _do_case_statement(self, node: Node) -> Status:
        subject = self.expand(node.named_children[0])
        if not known(subject):
            subject_text = self.text(node.named_children[0])
            self.note(node, "condition", f"which case {subject_text} takes is not known: none is read")
            return None
        for item in node.named_children[1:]:
            if item.type != "case_item":
                continue
            end = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
            patterns = [child for child in item.children[:end] if child.is_named]
            if any(fnmatch.fnmatchcase(flat(subject), flat(self.expand(pattern))) for pattern in patterns):
                return self._run([child for child in item.children[end + 1 :] if child.is_named])
        return True

    def _do_function_definition(self, node: Node) -> Status:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.text(name)] = body
        return True

    # -- tests -------------------------------------------------------------------------------------------------
    def _test(self, node: Node) -> Status:
        children = [child for child in node.children if child.type not in {"(", ")"}]
        if node.type == "parenthesized_expression":
            return self._test(children[0])
        if node.type == "negated_command" or (node.type == "unary_expression" and self.text(children[0]) == "!"):
            status = self._test(children[-1])
            return None if status is None else not status
        if node.type == "unary_expression":
            return self._unary(self.text(children[0]), children[1])
        if node.type == "binary_expression" and len(children) == 3:
            return self._binary(children[0], self.text(children[1]), children[2])
        value = self.expand(node)
        return flat(value) != "" if known(value) else None

    def _unary(self, operator: str, operand: Node) -> Status:
        if operator == "-v":
            return self.text(operand) in self.variables
        value = self.expand(operand)
        if not known(value):
            return None
        if operator in {"-n", "-z"}:
            return (flat(value) != "") == (operator == "-n")
        if operator in {"-f", "-e", "-d", "-s", "-r", "-x", "-w", "-L", "-h", "-p", "-S"}:
            return self.files
        return False if operator == "-t" else None

    def _binary(self, left: Node, operator: str, right: Node) -> Status:
        if operator in {"&&", "-a", "||", "-o"}:
            first, second = self._test(left), self._test(right)
            both = operator in {"&&", "-a"}
            if first is None or second is None:
                decided = (first is False or second is False) if both else (first is True or second is True)
                return (not both) if decided else None
            return (first and second) if both else (first or second)
        values = self.expand(left), self.expand(right)
        if not all(known(value) for value in values):
            return None
        one, two = flat(values[0]), flat(values[1])
        if operator in {"==", "=", "!="}:
            is_pattern = right.type in {"word", "extglob_pattern", "concatenation", "simple_expansion", "expansion"}
            equal = fnmatch.fnmatchcase(one, two) if is_pattern else one == two
            return equal == (operator != "!=")
        if operator == "=~":
            try:
                return re.search(two, one) is not None
            except re.error:
                return None
        if operator in {"<", ">"}:
            return one < two if operator == "<" else one > two
        compare = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}.get(operator)
        if compare is None:
            return None
        try:
            return evaluate(f"({one or 0}){compare}({two or 0})", self.number) != 0
        except NotArithmetic:
            return None

    # -- commands ----------------------------------------------------------------------------------------------
    def _do_command(self, node: Node) -> Status:
        prefix: dict[str, Value] = {}
        words: list[Word] = []
        for child in node.children:
            if child.type == "variable_assignment":
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if name is not None:
                    prefix[self.text(name)] = self.expand(value) if value else []
            elif child.type not in {"file_redirect", "heredoc_redirect", "herestring_redirect", "comment"}:
                words += self.words(child)
        if not words:
            for key, given in prefix.items():
                self.assign(key, given, line_of(node))
            return True
        return self._call(node, words, prefix)

    def _call(self, node: Node, words: list[Word], prefix: dict[str, Value]) -> Status:
        name = words[0].text
        if name in self.functions and self.depth < _DEPTH_LIMIT:
            return self._function(name, words)
        builtin = _BUILTINS.get(name)
        if builtin:
            return builtin(self, node, words)
        env = {key: flat(v.value) for key, v in self.variables.items() if v.exported and v.array is None}
        env.update({key: flat(value) for key, value in prefix.items()})
        command = Command(words, line_of(node), env, outputs=list(self.outputs))
        self.commands.append(command)
        self._redirects(node, [command])
        return None

    def _function(self, name: str, words: list[Word]) -> Status:
        before = self.arguments
        self.arguments = [[Piece(word.text, scalar=word.scalar, unknown=word.unknown)] for word in words[1:]]
        self.depth += 1
        try:
            return self.statement(self.functions[name])
        except _Jump as jump:
            if jump.kind != "return":
                raise
            return jump.status
        finally:
            self.depth -= 1
            self.arguments = before

    def _source(self, node: Node, words: list[Word]) -> Status:
        target = words[1].text if len(words) > 1 else ""
        self.sources.append(target)
        if not target.endswith("set_env.sh"):
            self.note(node, "source", target)
        return None

    def _leave(self, node: Node, words: list[Word]) -> Status:
        kind = words[0].text
        raise _Jump(kind, len(words) < 2 or words[1].text == "0")

    def _exec(self, node: Node, words: list[Word]) -> Status:
        if len(words) > 1:
            return self._call(node, words[1:], {})
        return True

    def _shift(self, node: Node, words: list[Word]) -> Status:
        count = int(words[1].text) if len(words) > 1 and words[1].text.isdigit() else 1
        self.arguments = self.arguments[count:]
        return True

    def _set(self, node: Node, words: list[Word]) -> Status:
        texts = [word.text for word in words]
        if "--" in texts:
            self.arguments = [[Piece(word.text)] for word in words[texts.index("--") + 1 :]]
        return True

    def _eval(self, node: Node, words: list[Word]) -> Status:
        self.note(node, "skipped", "eval is not read")
        return None

    def _read_input(self, node: Node, words: list[Word]) -> Status:
        for word in words[1:]:
            if word.text.isidentifier():
                self.assign(word.text, [Piece(f"${word.text}", unknown=True)], word.line)
        self.note(node, "unknown", f"{words[0].text} takes its value from outside")
        return None

    def _test_words(self, node: Node, words: list[Word]) -> Status:
        return None

    def _yes(self, node: Node, words: list[Word]) -> Status:
        return True

    def _no(self, node: Node, words: list[Word]) -> Status:
        return False


_BUILTINS: dict[str, Callable[[Reader, Node, list[Word]], Status]] = {
    **dict.fromkeys(
        (":", "true", "echo", "printf", "trap", "wait", "cd", "pushd", "popd", "shopt", "ulimit", "umask", "let",
         "alias", "pwd", "hash", "type"),
        Reader._yes,
    ),
    "false": Reader._no,
    "source": Reader._source,
    ".": Reader._source,
    **dict.fromkeys(("exit", "return", "break", "continue"), Reader._leave),
    "exec": Reader._exec,
    "shift": Reader._shift,
    "set": Reader._set,
    "eval": Reader._eval,
    "read": Reader._read_input,
    "mapfile": Reader._read_input,
    "test": Reader._test_words,
}


def _parts(node: Node, word: str) -> tuple[list[Node], list[Node], list[Node]]:
    """The named children before the keyword ``word``, those after it, and none."""
    at = next((i for i, child in enumerate(node.children) if child.type == word), len(node.children))
    before = [child for child in node.children[:at] if child.is_named and child.type != "comment"]
    after = [child for child in node.children[at:] if child.is_named]
    return before, after, []


def read_text(text: str, name: str = "script.sh", environ: Mapping[str, str] | None = None) -> Script:
    """Read the text of a script. ``environ``: variables that the script would find (default: none).

    Raises:
        RecipeError: when the extra ``import`` is not installed.
    """
    reader = Reader(text, name, environ or {})
    reader.follow()
    for variable, line in reader.assigned.items():
        if variable not in reader.used and not (reader.variables.get(variable) or Variable()).exported:
            reader.note_line(line, "unused", variable)
    plain = {key: flat(v.value) for key, v in reader.variables.items() if v.array is None and key in reader.assigned}
    exported = {key: flat(v.value) for key, v in reader.variables.items() if v.exported and v.array is None}
    notes = sorted(reader.notes, key=lambda note: note.line)
    return Script(name, reader.commands, notes, plain, exported, reader.sources, reader.assigned, text)


def read_script(path: Path, environ: Mapping[str, str] | None = None) -> Script:
    """Read a script file (see ``read_text``).

    Raises:
        RecipeError: when it cannot be read, or is no text.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: is no UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    return read_text(text, str(path), environ)


__all__ = ["Command", "Note", "Reader", "Script", "read_script", "read_text"]
