"""`Bytecode` as text for people."""

from .instruction import Bytecode, Instruction


def dis_text(bytecode: Bytecode) -> str:
    """A line for each instruction: source line, mark of a jump target, index, opcode, argument, exception handler."""
    targets = {instruction.target for instruction in bytecode} | {entry.target for entry in bytecode.exceptions}
    lines = [f"{bytecode.qualname} ({bytecode.filename}:{bytecode.firstlineno})"]
    shown: int | None = None
    for instruction in bytecode:
        line = instruction.line
        mark = ">>" if instruction in targets else "  "
        number = str(line) if line is not None and line != shown else ""
        shown = line if line is not None else shown
        entry = bytecode.handler_at[instruction.index]
        guard = f"  ! {entry.target.index} depth {entry.depth}{' lasti' if entry.lasti else ''}" if entry else ""
        text = f"{number:>5} {mark} {instruction.index:4} {instruction.op:<28} {_argument(instruction)}{guard}"
        lines.append(text.rstrip())
    return "\n".join(lines) + "\n"


def _argument(instruction: Instruction) -> str:
    value = instruction.argval
    if isinstance(value, Instruction):
        return f"-> {value.index}"
    text = repr(value) if instruction.arg is not None or value is not None else ""
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} (flag)" if instruction.flag else text
