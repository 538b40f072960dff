"""The machine code of the handover of tasks between threads; see `handover`."""

from collections.abc import Callable
from typing import Any, Literal

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.threads.handover import (
    ASLEEP,
    BEGIN,
    CLAIMED,
    EMPTY,
    END,
    FUNCTION,
    GROUP_FIELDS,
    HANDLE,
    LEADERS,
    MAX_POLLS,
    MAX_YIELDS,
    NEXT,
    RESULT,
    SENT,
    TASK,
    TASK_FIELDS,
)
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.system_code import write_ticks, write_yield
from stepnet.compiler.values.records import dataclass


def write_handover(processor: Processor) -> ir.Module:
    """Generates the LLVM module of the functions by which threads hand over tasks (`HandoverFunctions`)."""
    module = ir.Module("handover")
    receive, send = write_receive(module, processor), write_send(module, processor)
    write_wake(module, processor)
    write_serve(module, processor, receive, send)
    write_lead(module, processor, receive, send)
    return module


def new_function(
    module: ir.Module, processor: Processor, name: str, numbers: int = 0
) -> tuple[ir.Function, Code]:
    """Begins an LLVM function of a pointer and `numbers` integers; returns it and its body's builder."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER] + [I64] * numbers), name)
    return function, Code(function.append_basic_block("entry"), processor)


def exchange(code: Code, pointer: ir.Value, old: int, new: int) -> ir.Value:
    """Writes an atomic compare-and-swap of a word from `old` to `new`; returns whether it succeeded."""
    word, before, after = code.word_pointer(pointer), code.number(old), code.number(new)
    swapped = code.cmpxchg(word, before, after, "acq_rel", "acquire")
    return code.extract_value(swapped, 1)


# ---- mailboxes ---------------------------------------------------------------------------------------------


def call_semaphore(code: Code, name: str, mailbox: ir.Value, *numbers: int) -> None:
    """Writes a call of a system function on the semaphore of a mailbox, on which one thread waits. name: the
    function, "system_wait" or "system_post". numbers: its further arguments.
    """
    handle = code.read(I64, code.at(mailbox, HANDLE), 8)
    code.function_call(name, I64, [handle, *map(code.number, numbers)])


def wake(code: Code, mailbox: ir.Value) -> None:
    """Writes code that wakes the thread that sleeps on the semaphore of a mailbox."""
    call_semaphore(code, "system_post", mailbox, 1, 0)


def write_send(module: ir.Module, processor: Processor) -> ir.Function:
    """Generates, in an LLVM module, the function send(mailbox), which sends a message to the thread that
    waits on the mailbox: sets its word to SENT, and wakes the thread if it sleeps. The function returns the
    word as it was before.
    """
    function, code = new_function(module, processor, "send")
    mailbox = function.args[0]
    before = code.atomic_rmw("xchg", code.word_pointer(mailbox), code.number(SENT), "acq_rel")
    with code.when(code.icmp_signed("==", before, code.number(ASLEEP))):
        wake(code, mailbox)
    code.ret(before)
    return function


def poll_until(
    code: Code, mailbox: ir.Value, comparison: Literal["==", "!="], found: ir.Block, max_polls: ir.Value
) -> Any:
    """Writes a loop that polls the word of a mailbox, on which a thread waits, up to `max_polls` times. The
    code that follows runs if no poll ends the loop.

    comparison: the loop ends when this comparison of the word with SENT (a message was sent) is true.
    found: the block to which the code then goes.

    Returns the phi node that counts the polls. A branch to its block begins another round.
    """
    word, entry = code.word_pointer(mailbox), code.block
    poll, loop_block, exhausted = (code.append_basic_block(name) for name in ("look", "again", "tired"))
    code.branch(poll)
    code.position_at_end(poll)
    polls = code.phi(I64)
    polls.add_incoming(code.number(0), entry)
    read = code.load_atomic(word, "acquire", 8)
    code.cbranch(code.icmp_signed(comparison, read, code.number(SENT)), found, loop_block)
    code.position_at_end(loop_block)
    has_more = code.add(polls, code.number(1))
    polls.add_incoming(has_more, loop_block)
    code.pause()
    code.cbranch(code.icmp_signed("<", has_more, max_polls), poll, exhausted)
    code.position_at_end(exhausted)
    return polls


def write_receive(module: ir.Module, processor: Processor) -> ir.Function:
    """Writes the function receive(mailbox), which waits for a message in a mailbox (a word and a semaphore,
    by which one thread waits for another): spins, then yields the processor between polls, and later sleeps
    (ASLEEP), until the word is SENT; then sets it to EMPTY.
    """
    function, code = new_function(module, processor, "receive")
    mailbox, yields = function.args[0], code.alloca(I64)
    blocks = "give_way", "tired", "sleep", "there", "taken"
    yielding, exhausted, sleep, sent, received = map(code.append_basic_block, blocks)
    code.store(code.number(0), yields)
    polls = poll_until(code, mailbox, "==", sent, code.number(MAX_POLLS))
    poll = polls.parent
    yield_count = code.add(code.load(yields), code.number(1))
    code.store(yield_count, yields)
    code.cbranch(code.icmp_signed("<", yield_count, code.number(MAX_YIELDS)), yielding, exhausted)
    code.position_at_end(yielding)
    write_yield(code)
    polls.add_incoming(code.number(0), yielding)
    code.branch(poll)
    code.position_at_end(exhausted)
    code.store(code.number(0), yields)
    polls.add_incoming(code.number(0), exhausted)
    code.cbranch(exchange(code, mailbox, EMPTY, ASLEEP), sleep, poll)
    # A signal may have woken the thread: then the word is still ASLEEP, and it sleeps again.
    code.position_at_end(sleep)
    call_semaphore(code, "system_wait", mailbox, -1)
    woken = code.load_atomic(code.word_pointer(mailbox), "acquire", 8)
    polls.add_incoming(code.number(0), sleep)
    code.cbranch(code.icmp_signed("==", woken, code.number(ASLEEP)), sleep, poll)
    # The sender may have taken its message back; then the wait goes on.
    code.position_at_end(sent)
    polls.add_incoming(code.number(0), sent)
    code.cbranch(exchange(code, mailbox, SENT, EMPTY), received, poll)
    code.position_at_end(received)
    code.ret(code.number(SENT))
    return function


def write_withdraw(module: ir.Module, processor: Processor) -> ir.Function:
    """Writes the function taken(mailbox, max_polls), which withdraws a message that nobody receives in time.
    A mailbox is a word and a semaphore, by which one thread waits for another. The function polls the word up
    to `max_polls` times, and then takes the message back. It returns EMPTY if the receiver has taken the
    message, or SENT if the message was taken back.
    """
    function, code = new_function(module, processor, "taken", 1)
    function.linkage = "internal"
    mailbox, max_polls = function.args
    received = code.append_basic_block("taken")
    poll_until(code, mailbox, "!=", received, max_polls)
    is_withdrawn = exchange(code, mailbox, SENT, EMPTY)
    code.ret(code.select(is_withdrawn, code.number(SENT), code.number(EMPTY)))
    code.position_at_end(received)
    code.ret(code.number(EMPTY))
    return function


def write_wake(module: ir.Module, processor: Processor) -> None:
    """Writes the function wake(mailbox), which wakes the thread that sleeps on a mailbox (a word and a
    semaphore), without a message: if the word is ASLEEP, sets it to EMPTY and wakes the thread.
    """
    function, code = new_function(module, processor, "wake")
    mailbox = function.args[0]
    with code.when(exchange(code, mailbox, ASLEEP, EMPTY)):
        wake(code, mailbox)
    code.ret(code.number(EMPTY))


def write_serve(module: ir.Module, processor: Processor, receive: ir.Function, send: ir.Function) -> None:
    """Writes the function serve(worker), which a worker thread runs for ever: it waits for a task, runs it,
    stores its result (whether there is more to do), and reports its completion. receive, send: the functions
    that wait for a message and send one.
    """
    function, code = new_function(module, processor, "serve")
    worker = function.args[0]
    loop_block = code.append_basic_block("again")
    code.branch(loop_block)
    code.position_at_end(loop_block)
    code.call(receive, [code.at(worker, BEGIN)])
    address, task = (code.read(I64, code.at(worker, slot), 8) for slot in (FUNCTION, TASK))
    code.write(run_task(code, address, task), code.at(worker, RESULT), 8)
    code.call(send, [code.at(worker, END)])
    code.branch(loop_block)


def run_task(code: Code, address: ir.Value, task: ir.Value) -> ir.Value:
    """Writes a call of the function at an address with a task's pointer; returns whether more is to do."""
    return code.call_at(address, I64, [code.inttoptr(task, POINTER)])


# ---- leading -----------------------------------------------------------------------------------------------


class TaskGroupFields:
    """Access, in generated code, to the words of a task group (tasks run together)."""

    def __init__(self, code: Code, pointer: ir.Value) -> None:
        """Takes the builder of the code, and the pointer to the task group's words at run time."""
        self.code, self.pointer = code, pointer

    def field(self, name: str) -> ir.Value:
        """Writes a load of the word `name`, one of `GROUP_FIELDS`, of the task group; returns its value."""
        return self.code.read(I64, self.code.at(self.pointer, 8 * GROUP_FIELDS.index(name)), 8)

    def set_field(self, name: str, value: ir.Value) -> None:
        """Writes a store of a value to the word `name`, one of `GROUP_FIELDS`, of the task group."""
        self.code.write(value, self.code.at(self.pointer, 8 * GROUP_FIELDS.index(name)), 8)

    def task_field(self, slot: ir.Value, name: str) -> ir.Value:
        """Returns the address of the word `name`, one of `TASK_FIELDS`, of the task at the index `slot`."""
        offset = self.code.mul(slot, self.code.number(8 * len(TASK_FIELDS)))
        return self.code.at(
            self.code.at(self.pointer, offset), 8 * (len(GROUP_FIELDS) + TASK_FIELDS.index(name))
        )

    def function(self, slot: ir.Value) -> ir.Value:
        """Writes a load of the address of the function that runs the task at the index `slot`."""
        return self.code.read(I64, self.task_field(slot, "function"), 8)

    def task(self, slot: ir.Value) -> ir.Value:
        """Writes a load of the pointer that is the argument of the function of the task at index `slot`."""
        return self.code.read(I64, self.task_field(slot, "task"), 8)

    def run(self, slot: ir.Value) -> ir.Value:
        """Writes a call of the task at index `slot` in this thread; returns whether more is to do."""
        return run_task(self.code, self.function(slot), self.task(slot))

    def worker(self, slot: ir.Value) -> ir.Value:
        """Writes a load of the address of the worker that has the task at index `slot`; 0 for none."""
        return self.code.read(I64, self.task_field(slot, "worker"), 8)

    def set_worker(self, slot: ir.Value, address: ir.Value) -> None:
        """Writes a store of the address of the worker that has the task at index `slot`; 0 for none."""
        self.code.write(address, self.task_field(slot, "worker"), 8)

    def release_worker(self, slot: ir.Value) -> None:
        """Writes code that takes the task at index `slot` from its worker, which is then free for others."""
        claimed = self.code.at(self.code.inttoptr(self.worker(slot), POINTER), CLAIMED)
        self.code.store_atomic(self.code.number(0), self.code.word_pointer(claimed), "release", 8)
        self.set_worker(slot, self.code.number(0))


def write_lead(module: ir.Module, processor: Processor, receive: ir.Function, send: ir.Function) -> None:
    """Writes the function lead(task_group), by which a thread runs a group of tasks together with workers: it
    gives tasks to workers, runs the first task and all that no worker took, and waits for the rest. It
    returns whether a task has more to do. For shared tasks (a group with a `gate`, a word on which the
    threads wait for their number), it first fixes the number of threads; for others, it measures how long it
    worked and waited.

    receive, send: the functions that wait for a message and send one.
    """
    assign, start_shared = (
        write_assign(module, processor, send),
        write_start_shared(module, processor, write_withdraw(module, processor)),
    )
    run_unassigned, wait_for_all = (
        write_run_unassigned(module, processor),
        write_wait_for_all(module, processor, receive),
    )
    function, code = new_function(module, processor, "lead")
    pointer, fields = function.args[0], TaskGroupFields(code, function.args[0])
    gate = fields.field("gate")
    shared = code.icmp_signed("!=", gate, code.number(0))
    with code.when(shared):
        code.write(code.number(0), code.inttoptr(gate, POINTER), 8)
    # If several threads lead, each takes a part of the workers: more would compete for processors.
    leaders = code.word_pointer(code.at(code.inttoptr(fields.field("crew"), POINTER), LEADERS))
    other_leaders = code.atomic_rmw("add", leaders, code.number(1), "acq_rel")
    share = code.sdiv(fields.field("most"), code.add(other_leaders, code.number(1)))
    is_none = code.icmp_signed("<", share, code.number(1))
    fields.set_field("most", code.select(is_none, code.number(1), share))
    code.call(assign, [pointer])
    with code.when(shared):
        code.call(start_shared, [pointer])
    cell, scratch = code.alloca(I64), code.alloca(I64, code.number(2))
    times = [code.alloca(I64) for _ in range(3)]

    def note_time(slot: int) -> None:
        """Writes code that stores the present time, in ticks, in the variable at an index of `times`."""
        code.store(write_ticks(code, code.address("system_clock"), scratch), times[slot])

    with code.when(code.not_(shared)):
        note_time(0)
    code.store(fields.run(code.number(0)), cell)
    with code.when(code.not_(shared)):
        code.store(code.or_(code.load(cell), code.call(run_unassigned, [pointer])), cell)
        note_time(1)
    code.store(code.or_(code.load(cell), code.call(wait_for_all, [pointer])), cell)
    with code.when(code.not_(shared)):
        note_time(2)
        began, done, ended = map(code.load, times)
        fields.set_field("worked", code.sub(done, began))
        fields.set_field("waited", code.sub(ended, done))
    code.atomic_rmw("sub", leaders, code.number(1), "acq_rel")
    code.ret(code.load(cell))


def write_assign(module: ir.Module, processor: Processor, send: ir.Function) -> ir.Function:
    """Generates, in an LLVM module, the function recruit(task_group), which claims free workers and hands
    each a task, from the second task on. Sleeping workers are left out unless the field `wake` is set. The
    number of tasks that have a thread, the leader's included, is stored in the field `asked`.

    send: the function that sends a message.
    """
    function, code = new_function(module, processor, "recruit")
    function.linkage = "internal"
    fields = TaskGroupFields(code, function.args[0])
    slot_cell, worker_cell = code.alloca(I64), code.alloca(I64)
    code.store(code.number(1), slot_cell)
    first = code.load_atomic(code.word_pointer(code.inttoptr(fields.field("crew"), POINTER)), "acquire", 8)
    code.store(first, worker_cell)

    def wanted() -> ir.Value:
        """Writes the test whether to go on: more workers are wanted, and the list has further ones."""
        has_more = code.icmp_signed("<", code.load(slot_cell), fields.field("most"))
        return code.and_(has_more, code.icmp_signed("!=", code.load(worker_cell), code.number(0)))

    with code.loop_while(wanted):
        slot, address = code.load(slot_cell), code.load(worker_cell)
        worker = code.inttoptr(address, POINTER)
        state = code.load_atomic(code.word_pointer(code.at(worker, BEGIN)), "acquire", 8)
        awake = code.icmp_signed("!=", state, code.number(ASLEEP))
        with (
            code.when(code.or_(awake, code.icmp_signed("!=", fields.field("wake"), code.number(0)))),
            code.when(exchange(code, code.at(worker, CLAIMED), 0, 1)),
        ):
            code.write(fields.function(slot), code.at(worker, FUNCTION), 8)
            code.write(fields.task(slot), code.at(worker, TASK), 8)
            fields.set_worker(slot, address)
            code.call(send, [code.at(worker, BEGIN)])
            code.store(code.add(slot, code.number(1)), slot_cell)
        code.store(code.read(I64, code.at(worker, NEXT), 8), worker_cell)
    fields.set_field("asked", code.load(slot_cell))
    with code.loop(code.load(slot_cell), fields.field("count")) as slot:
        fields.set_worker(slot, code.number(0))
    code.ret(code.number(0))
    return function


@dataclass(frozen=True)
class TaskLoops:
    """Writer of loops over the tasks of a group, without the first task, which the leading thread runs."""

    code: Code
    fields: TaskGroupFields

    def for_each_task(self, work: Callable[[ir.Value, ir.Value], None], with_worker: bool) -> None:
        """Writes a loop over the tasks after the first one that have a worker, or that have none.

        work: writes the body of the loop, given the index of a task and the address of its worker.
        with_worker: whether the loop runs over the tasks that have a worker, or over the others.
        """
        code = self.code
        with code.loop(code.number(1), self.fields.field("count")) as slot:
            address = self.fields.worker(slot)
            comparison: Literal["!=", "=="] = "!=" if with_worker else "=="
            with code.when(code.icmp_signed(comparison, address, code.number(0))):
                work(slot, code.inttoptr(address, POINTER))


def write_start_shared(module: ir.Module, processor: Processor, withdraw: ir.Function) -> ir.Function:
    """Generates, in an LLVM module, the function settle(task_group), which fixes the number of threads that
    share a step: takes back tasks that no worker began in time, numbers the threads, and lets them start by
    the word `gate`.

    withdraw: the function that takes back a message that nobody has received.
    """
    function, code = new_function(module, processor, "settle")
    function.linkage = "internal"
    fields = TaskGroupFields(code, function.args[0])
    cell = code.alloca(I64)
    code.store(code.number(1), cell)

    def settle(slot: ir.Value, worker: ir.Value) -> None:
        """Writes code that takes task number `slot` back if its worker (a waiting thread) has not begun it in
        time, and otherwise gives the thread its number.
        """
        state = code.call(withdraw, [code.at(worker, BEGIN), fields.field("patience")])
        is_withdrawn = code.icmp_signed("==", state, code.number(SENT))
        with code.when(is_withdrawn):
            fields.release_worker(slot)
        with code.when(code.not_(is_withdrawn)):
            # The first word of a task's arguments is the number of its thread.
            code.write(code.load(cell), code.inttoptr(fields.task(slot), POINTER), 8)
            code.store(code.add(code.load(cell), code.number(1)), cell)

    TaskLoops(code, fields).for_each_task(settle, with_worker=True)
    fields.set_field("came", code.load(cell))
    gate = code.word_pointer(code.inttoptr(fields.field("gate"), POINTER))
    code.store_atomic(code.load(cell), gate, "release", 8)
    code.ret(code.number(0))
    return function


def write_run_unassigned(module: ir.Module, processor: Processor) -> ir.Function:
    """Writes the function relieve(task_group), which takes back tasks that no worker has begun, and runs all
    tasks that have no worker in the leading thread. It returns whether there is more to do.
    """
    function, code = new_function(module, processor, "relieve")
    function.linkage = "internal"
    fields = TaskGroupFields(code, function.args[0])
    cell = code.alloca(I64)
    code.store(code.number(0), cell)

    def take_back(slot: ir.Value, worker: ir.Value) -> None:
        """Writes code that takes the task at index `slot` back if its worker has not begun it."""
        with code.when(exchange(code, code.at(worker, BEGIN), SENT, EMPTY)):
            fields.release_worker(slot)

    def run_untaken(slot: ir.Value, _: ir.Value) -> None:
        """Writes code that runs the task at index `slot`, which no worker has, in this thread."""
        code.store(code.or_(code.load(cell), fields.run(slot)), cell)

    tasks = TaskLoops(code, fields)
    tasks.for_each_task(take_back, with_worker=True)
    tasks.for_each_task(run_untaken, with_worker=False)
    code.ret(code.load(cell))
    return function


def write_wait_for_all(module: ir.Module, processor: Processor, receive: ir.Function) -> ir.Function:
    """Writes the function finish(task_group), which waits until all workers have run their tasks, releases
    the workers, and returns whether a task has more to do. receive: the function that waits for a message.
    """
    function, code = new_function(module, processor, "finish")
    function.linkage = "internal"
    fields = TaskGroupFields(code, function.args[0])
    cell = code.alloca(I64)
    code.store(code.number(0), cell)

    def wait(slot: ir.Value, worker: ir.Value) -> None:
        """Writes code that waits for a worker, notes in `cell` if its task has more to do, and frees it."""
        code.call(receive, [code.at(worker, END)])
        code.store(code.or_(code.load(cell), code.read(I64, code.at(worker, RESULT), 8)), cell)
        fields.release_worker(slot)

    TaskLoops(code, fields).for_each_task(wait, with_worker=True)
    code.ret(code.load(cell))
    return function
