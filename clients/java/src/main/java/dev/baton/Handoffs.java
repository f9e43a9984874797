package dev.baton;

import dev.baton.v1.Handoff;
import dev.baton.v1.ListHandoffsRequest;
import dev.baton.v1.ListHandoffsResponse;
import dev.baton.v1.WatchHandoffRequest;
import dev.baton.v1.WatchHandoffResponse;
import dev.baton.v1.WatchHandoffsRequest;
import dev.baton.v1.WatchHandoffsResponse;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** Handoffs at the broker: lists and watches. {@link Agent#handoffs} returns it. */
public final class Handoffs {
    private static final int PAGE_SIZE = 500;

    private final Agent agent;
    private final Connection connection;

    Handoffs(Agent agent, Connection connection) {
        this.agent = agent;
        this.connection = connection;
    }

    /**
     * Returns the handoffs that match the request's filters, newest first. Sets the paging fields. An agent sees those in
     * which it is sender or candidate.
     */
    public List<Handoff> list(ListHandoffsRequest filters) {
        List<Handoff> found = new ArrayList<>();
        ListHandoffsRequest.Builder request = filters.toBuilder().setPageSize(PAGE_SIZE).clearPageToken();
        do {
            ListHandoffsRequest asked = request.build();
            ListHandoffsResponse page = connection.handoffs(stub -> stub.listHandoffs(asked));
            found.addAll(page.getHandoffsList());
            request.setPageToken(page.getNextPageToken());
        } while (!request.getPageToken().isEmpty());
        return found;
    }

    /**
     * Follows a handoff: its present state, then its state after each step, until it is final. After a lost connection
     * the states between are missing; each state has all steps with their times.
     */
    public Watch<Handoff> watch(String handoffId) {
        WatchHandoffRequest request =
                WatchHandoffRequest.newBuilder().setHandoffId(handoffId).build();
        return agent.watch("handoff " + handoffId, new Watch.Source<>() {
            private Handoff last = Handoff.getDefaultInstance();

            @Override
            public Iterator<Handoff> open() {
                Iterator<WatchHandoffResponse> answers = connection.watchHandoffs(stub -> stub.watchHandoff(request));
                return new Iterator<>() {
                    @Override
                    public boolean hasNext() {
                        return answers.hasNext();
                    }

                    @Override
                    public Handoff next() {
                        return answers.next().getHandoff();
                    }
                };
            }

            @Override
            public boolean take(Handoff state) {
                boolean isNew = !state.equals(last); // a call that was opened again repeats it
                last = state;
                return isNew;
            }

            @Override
            public boolean isLast(Handoff state) {
                return !Handover.isOpen(state);
            }

            @Override
            public boolean isOver() {
                return !last.getHandoffId().isEmpty() && isLast(last);
            }
        });
    }

    /**
     * Follows all handoffs that this agent may read and that match the request: the open ones, or those that changed
     * after the request's cursor; then one caught_up; then each change up to its end. Of several changes of one handoff
     * the last may come alone. After a restart of the broker the watch goes on from the last cursor; a later process
     * does from the cursor of the last event that it handled.
     */
    public Watch<WatchHandoffsResponse> watchAll(WatchHandoffsRequest request) {
        return agent.watch("handoffs", new Watch.Source<>() {
            private long cursor = request.getAfterCursor();
            private boolean isCaughtUp;

            @Override
            public Iterator<WatchHandoffsResponse> open() {
                WatchHandoffsRequest asked = request.toBuilder().setAfterCursor(cursor).build();
                return connection.watchHandoffs(stub -> stub.watchHandoffs(asked));
            }

            @Override
            public boolean take(WatchHandoffsResponse event) {
                cursor = event.hasGap() ? event.getCursor() : Math.max(cursor, event.getCursor());
                boolean isRepeated = event.getCaughtUp() && isCaughtUp;
                isCaughtUp = isCaughtUp || event.getCaughtUp();
                return !isRepeated && event.getEventCase() != WatchHandoffsResponse.EventCase.EVENT_NOT_SET;
            }
        });
    }
}
