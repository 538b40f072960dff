"""The machine code of the handover of tasks between threads; see `handover`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.target import Processor
from stepnet.compiler.targets.cpu.threads.handover import (
    ASLEEP,
    BEGIN,
    CLAIMED,
    END,
    FUNCTION,
    HANDLE,
    LEADERS,
    LOOKS,
    NEXT,
    NOTHING,
    ORDERS,
    RESULT,
    TASK,
    TASK_WORDS,
    THERE,
    TURNS,
)
from stepnet.compiler.targets.cpu.writing.code import I64, POINTER, Code
from stepnet.compiler.targets.cpu.writing.system_code import write_ticks, write_yield


def write_handover(target: Processor) -> ir.Module:
    """Generates the LLVM module of the functions by which threads hand over tasks (`Signals`)."""
    module = ir.Module("handover")
    look, say = write_look(module, target), write_say(module, target)
    write_rouse(module, target)
    write_serve(module, target, look, say)
    write_lead(module, target, look, say)
    return module


def new_function(
    module: ir.Module, target: Processor, name: str, numbers: int = 0
) -> tuple[ir.Function, Code]:
    """Begins a function of a pointer and `numbers` integers; returns it, and the builder of its body."""
    function = ir.Function(module, ir.FunctionType(I64, [POINTER] + [I64] * numbers), name)
    return function, Code(function.append_basic_block("entry"), target)


def exchange(code: Code, pointer: ir.Value, old: int, new: int) -> ir.Value:
    """Writes an atomic compare-and-swap of a word from `old` to `new`; returns whether it succeeded."""
    word, before, after = code.word_pointer(pointer), code.number(old), code.number(new)
    swapped = code.cmpxchg(word, before, after, "acq_rel", "acquire")
    return code.extract_value(swapped, 1)


# ---- places ------------------------------------------------------------------------------------------------


def call_semaphore(code: Code, name: str, mailbox: ir.Value, *numbers: int) -> None:
    """Writes a call of a system function on the semaphore of a place (a mailbox on which one thread waits).
    name: the function, "system_wait" or "system_post". numbers: its further arguments.
    """
    handle = code.read(I64, code.at(mailbox, HANDLE), 8)
    code.function_call(name, I64, [handle, *map(code.number, numbers)])


def wake(code: Code, mailbox: ir.Value) -> None:
    """Writes code that wakes the thread that sleeps at a place, a mailbox with a semaphore."""
    call_semaphore(code, "system_post", mailbox, 1, 0)


def write_say(module: ir.Module, target: Processor) -> ir.Function:
    """Writes the function say(place), which sends a message to the thread that waits at a place (a mailbox):
    sets the word to THERE, and wakes the thread if it sleeps. It returns the word as it was before.
    """
    function, code = new_function(module, target, "say")
    mailbox = function.args[0]
    before = code.atomic_rmw("xchg", code.word_pointer(mailbox), code.number(THERE), "acq_rel")
    with code.when(code.icmp_signed("==", before, code.number(ASLEEP))):
        wake(code, mailbox)
    code.ret(before)
    return function


def read_until(
    code: Code, mailbox: ir.Value, comparison: Literal["==", "!="], found: ir.Block, most: ir.Value
) -> Any:
    """Writes a loop that polls the word of a place (a mailbox on which a thread waits), up to `most` times.
    The code that follows runs if the polls do not end the loop.

    comparison: the comparison of the word with THERE that ends the loop.
    found: the block to go to when it ends the loop.

    Returns the phi node that counts the polls. A branch to its block begins another round.
    """
    word, entry = code.word_pointer(mailbox), code.block
    look, again, tired = (code.append_basic_block(name) for name in ("look", "again", "tired"))
    code.branch(look)
    code.position_at_end(look)
    looks = code.phi(I64)
    looks.add_incoming(code.number(0), entry)
    read = code.load_atomic(word, "acquire", 8)
    code.cbranch(code.icmp_signed(comparison, read, code.number(THERE)), found, again)
    code.position_at_end(again)
    more = code.add(looks, code.number(1))
    looks.add_incoming(more, again)
    code.pause()
    code.cbranch(code.icmp_signed("<", more, most), look, tired)
    code.position_at_end(tired)
    return looks


def write_look(module: ir.Module, target: Processor) -> ir.Function:
    """Writes the function look(place), which waits for a message at a place (a mailbox): spins, then yields
    the processor between polls, and later sleeps (ASLEEP), until the word is THERE; then sets it to NOTHING.
    """
    function, code = new_function(module, target, "look")
    mailbox, turns = function.args[0], code.alloca(I64)
    blocks = "give_way", "tired", "sleep", "there", "taken"
    give_way, tired, sleep, there, taken = map(code.append_basic_block, blocks)
    code.store(code.number(0), turns)
    looks = read_until(code, mailbox, "==", there, code.number(LOOKS))
    look = looks.parent
    turn = code.add(code.load(turns), code.number(1))
    code.store(turn, turns)
    code.cbranch(code.icmp_signed("<", turn, code.number(TURNS)), give_way, tired)
    code.position_at_end(give_way)
    write_yield(code)
    looks.add_incoming(code.number(0), give_way)
    code.branch(look)
    code.position_at_end(tired)
    code.store(code.number(0), turns)
    looks.add_incoming(code.number(0), tired)
    code.cbranch(exchange(code, mailbox, NOTHING, ASLEEP), sleep, look)
    # A signal may have woken the thread: then the word is still ASLEEP, and it sleeps again.
    code.position_at_end(sleep)
    call_semaphore(code, "system_wait", mailbox, -1)
    woken = code.load_atomic(code.word_pointer(mailbox), "acquire", 8)
    looks.add_incoming(code.number(0), sleep)
    code.cbranch(code.icmp_signed("==", woken, code.number(ASLEEP)), sleep, look)
    # The sender may have taken its message back; then the wait goes on.
    code.position_at_end(there)
    looks.add_incoming(code.number(0), there)
    code.cbranch(exchange(code, mailbox, THERE, NOTHING), taken, look)
    code.position_at_end(taken)
    code.ret(code.number(THERE))
    return function


def write_taken(module: ir.Module, target: Processor) -> ir.Function:
    """Writes the function taken(place, most), which checks whether a message at a place (a mailbox) was
    received. After `most` polls of the word it takes the message back. It returns NOTHING if the receiver
    took the message, THERE if it was taken back.
    """
    function, code = new_function(module, target, "taken", 1)
    function.linkage = "internal"
    mailbox, most = function.args
    taken = code.append_basic_block("taken")
    read_until(code, mailbox, "!=", taken, most)
    back = exchange(code, mailbox, THERE, NOTHING)
    code.ret(code.select(back, code.number(THERE), code.number(NOTHING)))
    code.position_at_end(taken)
    code.ret(code.number(NOTHING))
    return function


def write_rouse(module: ir.Module, target: Processor) -> None:
    """Writes the function rouse(place), which wakes the thread that sleeps at a place (a mailbox) without a
    message: if the word is ASLEEP, sets it to NOTHING and wakes the thread.
    """
    function, code = new_function(module, target, "rouse")
    mailbox = function.args[0]
    with code.when(exchange(code, mailbox, ASLEEP, NOTHING)):
        wake(code, mailbox)
    code.ret(code.number(NOTHING))


def write_serve(module: ir.Module, target: Processor, look: ir.Function, say: ir.Function) -> None:
    """Writes the function serve(worker), which a worker thread runs for ever: it waits for a task, runs it,
    stores its result (whether there is more to do), and reports its completion. look, say: wait for a
    message, and send one.
    """
    function, code = new_function(module, target, "serve")
    worker = function.args[0]
    again = code.append_basic_block("again")
    code.branch(again)
    code.position_at_end(again)
    code.call(look, [code.at(worker, BEGIN)])
    address, task = (code.read(I64, code.at(worker, slot), 8) for slot in (FUNCTION, TASK))
    code.write(run_task(code, address, task), code.at(worker, RESULT), 8)
    code.call(say, [code.at(worker, END)])
    code.branch(again)


def run_task(code: Code, address: ir.Value, task: ir.Value) -> ir.Value:
    """Writes a call of a task's function, by address, with the task's pointer; returns if more is to do."""
    return code.call_at(address, I64, [code.inttoptr(task, POINTER)])


# ---- leading -----------------------------------------------------------------------------------------------


class OrderWords:
    """Access, in generated code, to the words of orders (tasks that threads run together)."""

    def __init__(self, code: Code, pointer: ir.Value) -> None:
        """Takes the builder of the code, and the pointer to the words of the orders at run time."""
        self.code, self.pointer = code, pointer

    def word(self, name: str) -> ir.Value:
        """Writes a load of word `name`, one of `ORDERS`, of the orders (tasks that threads run together)."""
        return self.code.read(I64, self.code.at(self.pointer, 8 * ORDERS.index(name)), 8)

    def set_word(self, name: str, value: ir.Value) -> None:
        """Writes a store to word `name`, one of `ORDERS`, of the orders (tasks that threads run together)."""
        self.code.write(value, self.code.at(self.pointer, 8 * ORDERS.index(name)), 8)

    def of_task(self, slot: ir.Value, name: str) -> ir.Value:
        """Writes the address of the word `name`, one of `TASK_WORDS`, of the task at an index."""
        offset = self.code.mul(slot, self.code.number(8 * len(TASK_WORDS)))
        return self.code.at(self.code.at(self.pointer, offset), 8 * (len(ORDERS) + TASK_WORDS.index(name)))

    def function(self, slot: ir.Value) -> ir.Value:
        """Writes a load of the address of the function that runs the task at an index."""
        return self.code.read(I64, self.of_task(slot, "function"), 8)

    def task(self, slot: ir.Value) -> ir.Value:
        """Writes a load of the pointer with which the function of the task at an index is called."""
        return self.code.read(I64, self.of_task(slot, "task"), 8)

    def run(self, slot: ir.Value) -> ir.Value:
        """Writes a call of the task at an index in this thread; returns whether there is more to do."""
        return run_task(self.code, self.function(slot), self.task(slot))

    def worker(self, slot: ir.Value) -> ir.Value:
        """Writes a load of the address of the worker that has the task at an index; 0 for none."""
        return self.code.read(I64, self.of_task(slot, "worker"), 8)

    def set_worker(self, slot: ir.Value, address: ir.Value) -> None:
        """Writes a store of the address of the worker that has the task at an index; 0 for none."""
        self.code.write(address, self.of_task(slot, "worker"), 8)

    def dismiss(self, slot: ir.Value) -> None:
        """Writes code that takes the task at an index from its worker, which is then free for other tasks."""
        claimed = self.code.at(self.code.inttoptr(self.worker(slot), POINTER), CLAIMED)
        self.code.store_atomic(self.code.number(0), self.code.word_pointer(claimed), "release", 8)
        self.set_worker(slot, self.code.number(0))


def write_lead(module: ir.Module, target: Processor, look: ir.Function, say: ir.Function) -> None:
    """Writes the function lead(orders), by which a thread runs tasks with others: it gives tasks to workers,
    runs the first task and all that no worker took, and waits for the rest. It returns whether a task has
    more to do. Of shared tasks (those with a gate), it first fixes the number of threads; of others, it
    measures its times.

    look, say: the functions that wait for a message and send one.
    """
    recruit, settle = (
        write_recruit(module, target, say),
        write_settle(module, target, write_taken(module, target)),
    )
    relieve, finish = write_relieve(module, target), write_finish(module, target, look)
    function, code = new_function(module, target, "lead")
    pointer, orders = function.args[0], OrderWords(code, function.args[0])
    gate = orders.word("gate")
    shared = code.icmp_signed("!=", gate, code.number(0))
    with code.when(shared):
        code.write(code.number(0), code.inttoptr(gate, POINTER), 8)
    # If several threads lead, each takes a part of the workers: more would compete for processors.
    leaders = code.word_pointer(code.at(code.inttoptr(orders.word("crew"), POINTER), LEADERS))
    others = code.atomic_rmw("add", leaders, code.number(1), "acq_rel")
    share = code.sdiv(orders.word("most"), code.add(others, code.number(1)))
    is_none = code.icmp_signed("<", share, code.number(1))
    orders.set_word("most", code.select(is_none, code.number(1), share))
    code.call(recruit, [pointer])
    with code.when(shared):
        code.call(settle, [pointer])
    cell, scratch = code.alloca(I64), code.alloca(I64, code.number(2))
    times = [code.alloca(I64) for _ in range(3)]

    def note_time(slot: int) -> None:
        """Writes code that stores the present time, in ticks, in the variable at an index of `times`."""
        code.store(write_ticks(code, code.address("system_clock"), scratch), times[slot])

    with code.when(code.not_(shared)):
        note_time(0)
    code.store(orders.run(code.number(0)), cell)
    with code.when(code.not_(shared)):
        code.store(code.or_(code.load(cell), code.call(relieve, [pointer])), cell)
        note_time(1)
    code.store(code.or_(code.load(cell), code.call(finish, [pointer])), cell)
    with code.when(code.not_(shared)):
        note_time(2)
        began, done, ended = map(code.load, times)
        orders.set_word("worked", code.sub(done, began))
        orders.set_word("waited", code.sub(ended, done))
    code.atomic_rmw("sub", leaders, code.number(1), "acq_rel")
    code.ret(code.load(cell))


def write_recruit(module: ir.Module, target: Processor, say: ir.Function) -> ir.Function:
    """Writes the function recruit(orders), which claims free workers and hands each a task, from the second
    task on. Sleeping workers are left out unless `wake` is set. The number of tasks that have a thread
    becomes `asked`.

    say: the function that sends a message.
    """
    function, code = new_function(module, target, "recruit")
    function.linkage = "internal"
    orders = OrderWords(code, function.args[0])
    place_cell, worker_cell = code.alloca(I64), code.alloca(I64)
    code.store(code.number(1), place_cell)
    first = code.load_atomic(code.word_pointer(code.inttoptr(orders.word("crew"), POINTER)), "acquire", 8)
    code.store(first, worker_cell)

    def wanted() -> ir.Value:
        """Writes the test whether to go on: more workers are wanted, and the list has further ones."""
        more = code.icmp_signed("<", code.load(place_cell), orders.word("most"))
        return code.and_(more, code.icmp_signed("!=", code.load(worker_cell), code.number(0)))

    with code.loop_while(wanted):
        slot, address = code.load(place_cell), code.load(worker_cell)
        worker = code.inttoptr(address, POINTER)
        state = code.load_atomic(code.word_pointer(code.at(worker, BEGIN)), "acquire", 8)
        awake = code.icmp_signed("!=", state, code.number(ASLEEP))
        with (
            code.when(code.or_(awake, code.icmp_signed("!=", orders.word("wake"), code.number(0)))),
            code.when(exchange(code, code.at(worker, CLAIMED), 0, 1)),
        ):
            code.write(orders.function(slot), code.at(worker, FUNCTION), 8)
            code.write(orders.task(slot), code.at(worker, TASK), 8)
            orders.set_worker(slot, address)
            code.call(say, [code.at(worker, BEGIN)])
            code.store(code.add(slot, code.number(1)), place_cell)
        code.store(code.read(I64, code.at(worker, NEXT), 8), worker_cell)
    orders.set_word("asked", code.load(place_cell))
    with code.loop(code.load(place_cell), orders.word("count")) as slot:
        orders.set_worker(slot, code.number(0))
    code.ret(code.number(0))
    return function


@dataclass(frozen=True)
class Tasks:
    """Writer of loops over tasks that threads run together (orders), but for the leading thread's first."""

    code: Code
    orders: OrderWords

    def each(self, work: Callable[[ir.Value, ir.Value], None], with_worker: bool) -> None:
        """Writes a loop over those tasks, apart from the first, that have a worker, or that have none.

        work: writes the body of the loop, given the index of a task and the address of its worker.
        """
        code = self.code
        with code.loop(code.number(1), self.orders.word("count")) as slot:
            address = self.orders.worker(slot)
            comparison: Literal["!=", "=="] = "!=" if with_worker else "=="
            with code.when(code.icmp_signed(comparison, address, code.number(0))):
                work(slot, code.inttoptr(address, POINTER))


def write_settle(module: ir.Module, target: Processor, taken: ir.Function) -> ir.Function:
    """Writes the function settle(orders), which fixes the number of threads that share a step: takes back
    tasks that were not begun in time, numbers the threads, and lets them start by the word `gate`.

    taken: the function that takes back a message.
    """
    function, code = new_function(module, target, "settle")
    function.linkage = "internal"
    orders = OrderWords(code, function.args[0])
    cell = code.alloca(I64)
    code.store(code.number(1), cell)

    def settle(slot: ir.Value, worker: ir.Value) -> None:
        """Writes code that takes a task back if its worker has not begun it, or numbers the thread."""
        state = code.call(taken, [code.at(worker, BEGIN), orders.word("patience")])
        away = code.icmp_signed("==", state, code.number(THERE))
        with code.when(away):
            orders.dismiss(slot)
        with code.when(code.not_(away)):
            # The first word of a task's arguments is the number of its thread.
            code.write(code.load(cell), code.inttoptr(orders.task(slot), POINTER), 8)
            code.store(code.add(code.load(cell), code.number(1)), cell)

    Tasks(code, orders).each(settle, with_worker=True)
    orders.set_word("came", code.load(cell))
    gate = code.word_pointer(code.inttoptr(orders.word("gate"), POINTER))
    code.store_atomic(code.load(cell), gate, "release", 8)
    code.ret(code.number(0))
    return function


def write_relieve(module: ir.Module, target: Processor) -> ir.Function:
    """Writes the function relieve(orders), which takes back tasks that no worker has begun, and runs in the
    leading thread all that have no worker. It returns whether there is more to do.
    """
    function, code = new_function(module, target, "relieve")
    function.linkage = "internal"
    orders = OrderWords(code, function.args[0])
    cell = code.alloca(I64)
    code.store(code.number(0), cell)

    def take_back(slot: ir.Value, worker: ir.Value) -> None:
        """Writes code that takes the task at an index back if its worker has not begun it."""
        with code.when(exchange(code, code.at(worker, BEGIN), THERE, NOTHING)):
            orders.dismiss(slot)

    def run_untaken(slot: ir.Value, _: ir.Value) -> None:
        """Writes code that runs the task at an index, which no worker has, in this thread."""
        code.store(code.or_(code.load(cell), orders.run(slot)), cell)

    tasks = Tasks(code, orders)
    tasks.each(take_back, with_worker=True)
    tasks.each(run_untaken, with_worker=False)
    code.ret(code.load(cell))
    return function


def write_finish(module: ir.Module, target: Processor, look: ir.Function) -> ir.Function:
    """Writes the function finish(orders), which waits until all workers have run their tasks, releases them,
    and returns whether a task has more to do. look: the function that waits for a message.
    """
    function, code = new_function(module, target, "finish")
    function.linkage = "internal"
    orders = OrderWords(code, function.args[0])
    cell = code.alloca(I64)
    code.store(code.number(0), cell)

    def wait(slot: ir.Value, worker: ir.Value) -> None:
        """Writes code that waits for a worker, notes whether its task has more to do, and releases it."""
        code.call(look, [code.at(worker, END)])
        code.store(code.or_(code.load(cell), code.read(I64, code.at(worker, RESULT), 8)), cell)
        orders.dismiss(slot)

    Tasks(code, orders).each(wait, with_worker=True)
    code.ret(code.load(cell))
    return function
