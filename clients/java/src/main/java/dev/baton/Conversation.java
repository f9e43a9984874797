package dev.baton;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** The mail that somebody waits for: that of one handoff, or what comes of a delegated task. */
final class Conversation {
    private final BlockingQueue<Object> mail = new LinkedBlockingQueue<>();

    void put(Delivery<?> delivery) {
        mail.add(delivery);
    }

    /** There will be no further mail. */
    void fail(BatonException why) {
        mail.add(why);
    }

    Delivery<?> next() throws InterruptedException {
        Object next = mail.take();
        if (next instanceof BatonException why) {
            mail.add(why);
            throw why;
        }
        return (Delivery<?>) next;
    }

    /** What nobody has taken. */
    List<Delivery<?>> rest() {
        List<Object> left = new ArrayList<>();
        mail.drainTo(left);
        List<Delivery<?>> rest = new ArrayList<>();
        for (Object one : left) {
            if (one instanceof Delivery<?> delivery) {
                rest.add(delivery);
            }
        }
        return rest;
    }
}
