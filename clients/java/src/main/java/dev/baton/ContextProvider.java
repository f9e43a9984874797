package dev.baton;

import dev.baton.v1.ContextSection;
import java.util.List;

/** Returns the context of a handoff that was accepted. */
@FunctionalInterface
public interface ContextProvider {
    /**
     * Called on a thread of its own for every accept that no {@link Agent#handOver} or {@link Agent#resumeHandOver} of this
     * process waits for: after a restart, or where a handoff begins by a HandoffRequest that was sent by itself. What it
     * throws becomes a nack of the accept, which is delivered again.
     */
    List<ContextSection> contextFor(ContextWanted wanted) throws Exception;
}
