package dev.baton;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.fail;

import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/** A call of the client in a thread of its own, which the test interrupts. */
final class Interruptible {
    private final FutureTask<?> call;
    private final Thread thread;

    /** Begins the call. */
    Interruptible(Callable<?> work) {
        call = new FutureTask<>(work);
        thread = new Thread(call, "interruptible");
        thread.start();
    }

    /** Waits until something holds while the call goes on. Fails if the call ends before, with what it has thrown. */
    void until(String what, Callable<Boolean> holds) throws Exception {
        RealBroker.until(what, () -> {
            boolean isOver = call.isDone(); // read first: the last thing that the call does may be what is waited for
            if (holds.call()) {
                return true;
            }
            if (isOver) {
                fail("the call has ended before " + what + ", with " + call.get());
            }
            return false;
        });
    }

    /** Interrupts the call, and waits until it has thrown InterruptedException. */
    void interrupt() {
        thread.interrupt();
        var ended = assertThrows(ExecutionException.class, () -> call.get(RealBroker.PATIENCE_SECONDS, TimeUnit.SECONDS));
        assertInstanceOf(InterruptedException.class, ended.getCause());
    }
}
