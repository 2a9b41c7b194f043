"""A filter of system calls, as the kernel takes it: a classic BPF program.

What `system_calls` does not allow is refused with EPERM, or with ENOSYS where a library is to
believe that the kernel is older. Another architecture's calls end the process.

Source: seccomp(2), linux/filter.h, linux/seccomp.h, linux/audit.h.
"""

import errno
import functools
import platform
import struct

from unslothrl.sandbox import system_calls
from unslothrl.sandbox.system_calls import Conditional

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}

# linux/bpf_common.h and linux/seccomp.h
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ABOVE = 0x20, 0x15, 0x35, 0x25
RETURN, AND = 0x06, 0x54
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCH, ARGUMENTS = 0, 4, 16  # offsets in seccomp_data; an argument has 8 bytes

Line = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


@functools.cache
def bpf_filter(
    threads: bool = True, machine: str | None = None, own_pid: int | None = None
) -> bytes:
    """The filter for this machine: with threads or without, and signals to `own_pid` alone where
    that is given. OSError where the machine's calls are unknown."""
    machine = machine or platform.machine()
    if machine not in COLUMN:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {machine}")
    column = COLUMN[machine]
    lines: list[Line] = [
        (LOAD, 0, 0, ARCH),
        (JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
    ]
    for conditional in system_calls.conditional(threads, own_pid):
        lines += rule(conditional, column)
    lines += [(JUMP_EQUAL, 0, 1, number_of(system_calls.MSYNC, column)), refuse(0)]
    numbers = [numbers[column] for numbers in system_calls.ALLOWED.values()]
    refused = [(JUMP_AT_LEAST, 0, 1, system_calls.NEW), refuse(errno.ENOSYS), refuse(errno.EPERM)]
    lines += skip(refused, sorted(number for number in numbers if number is not None))
    lines += [*refused, (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def number_of(numbers: system_calls.Numbers, column: int) -> int:
    number = numbers[column]
    assert number is not None
    return number


def rule(call: Conditional, column: int) -> list[Line]:
    """The whole verdict on a call that depends on its arguments; others pass by."""
    tests: list[Line] = []
    for condition in reversed(call.conditions):
        test: list[Line] = [(LOAD, 0, 0, ARGUMENTS + 8 * condition.argument)]
        if condition.mask != 0xFFFFFFFF:
            test.append((AND, 0, 0, condition.mask))
        # each value jumps over the others and the refusal after them
        count = len(condition.values)
        test += [(JUMP_EQUAL, count - i, 0, value) for i, value in enumerate(condition.values)]
        tests = [*test, refuse(errno.EPERM), *tests]
    tests.append((RETURN, 0, 0, ALLOW))
    return [(JUMP_EQUAL, 0, len(tests), number_of(call.numbers, column)), *tests]


def skip(refused: list[Line], numbers: list[int]) -> list[Line]:
    """Tests that jump over what refuses a call if it is one of these numbers, given in order.

    A conditional jump goes 255 lines at most.
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    lines: list[Line] = []
    for first, last in reversed(ranges):
        beyond = len(lines) + len(refused)
        if first == last:
            lines.insert(0, (JUMP_EQUAL, beyond, 0, first))
        else:
            lines[:0] = [(JUMP_AT_LEAST, 0, 1, first), (JUMP_ABOVE, 0, beyond, last)]
    return lines


def refuse(error: int) -> Line:
    """Fails a call with this error; 0: it does nothing and succeeds."""
    return (RETURN, 0, 0, ERROR | error)
