package dev.baton;

import dev.baton.v1.ContextSection;
import java.util.List;

/** Returns the context of an accepted handoff. */
@FunctionalInterface
public interface ContextProvider {
    /**
     * Returns the context for an accept that no {@link Agent#handOver} or {@link Agent#resumeHandOver} of this process
     * waits for: after a restart, or for a handoff that began with a separately sent HandoffRequest. Each call has its
     * own thread. An exception becomes a nack of the accept, which is redelivered.
     */
    List<ContextSection> contextFor(ContextWanted wanted) throws Exception;
}
