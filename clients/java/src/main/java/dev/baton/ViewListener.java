package dev.baton;

import dev.baton.v1.SenderView;

/** Learns how the sender sees its handoff: see {@link AgentBuilder#onView}. */
@FunctionalInterface
public interface ViewListener {
    /** Is called with each view, from IDLE to HANDOFF_COMPLETED. Must not block. */
    void onView(String handoffId, SenderView view);
}
