package dev.baton;

import dev.baton.BatonException.FieldViolation;
import dev.baton.v1.Envelope;
import dev.baton.v1.GetWorkspaceRequest;
import dev.baton.v1.ListEntriesRequest;
import dev.baton.v1.ListEntriesResponse;
import dev.baton.v1.ListTopicsRequest;
import dev.baton.v1.WatchEntriesRequest;
import dev.baton.v1.WatchEntriesResponse;
import dev.baton.v1.WorkspaceAppend;
import dev.baton.v1.WorkspaceEntry;
import dev.baton.v1.WorkspaceTopic;
import io.grpc.Status;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * A workspace that an agent takes part in: numbered entries that the agents of a task share. {@link Agent#workspace}
 * returns it. A workspace is thread-safe.
 */
public final class Workspace {
    private static final Pattern WHITE_SPACE = Pattern.compile("\\p{IsWhite_Space}+");
    private static final Pattern TOPIC = Pattern.compile("[\\p{IsAlphabetic}\\p{N}_.-]+");

    private final Agent agent;
    private final Connection connection;
    private final Directory directory;
    private final String id;
    private final boolean isVerifying;

    Workspace(Agent agent, Connection connection, Directory directory, String id, boolean isVerifying) {
        this.agent = agent;
        this.connection = connection;
        this.directory = directory;
        this.id = id;
        this.isVerifying = isVerifying;
    }

    /** Returns the workspace's id. */
    public String id() {
        return id;
    }

    /**
     * Returns the same workspace, whose reads check the signature of each entry's author, and that the broker shows what
     * the author has signed. They ask for the envelopes, and throw {@link VerificationException} at an entry that does
     * not verify: ENTRY_INVALID if it differs from its envelope.
     */
    public Workspace verifying() {
        return new Workspace(agent, connection, directory, id, true);
    }

    /**
     * Appends a JSON value, at most 1 MiB as UTF-8, and returns the number of its entry. Repeats the same message over
     * successive sessions, which gives one entry. Throws {@link BatonException}: ENTRY_TOO_LARGE before anything is
     * sent, and WORKSPACE_CLOSED, QUOTA_EXCEEDED or PERMISSION_DENIED by the broker.
     */
    public long append(String topic, String json) throws InterruptedException {
        return append(WorkspaceAppend.newBuilder().setTopic(topic).setJson(json).build());
    }

    /**
     * As {@link #append(String, String)}, if {@code last} is the number of the workspace's last entry; 0: if it has
     * none. Otherwise throws {@link BatonException}, SEQUENCE_CONFLICT, whose metadata has the right number as
     * last_sequence.
     */
    public long appendAfter(long last, String topic, String json) throws InterruptedException {
        return append(WorkspaceAppend.newBuilder()
                .setTopic(topic)
                .setJson(json)
                .setExpectedLastSequence(last)
                .build());
    }

    /** As {@link #append(String, String)}, with all fields but the workspace's id: bytes, a reference, a time. */
    public long append(WorkspaceAppend entry) throws InterruptedException {
        Limits.checkEntry(
                switch (entry.getEntryCase()) {
                    case JSON -> entry.getJsonBytes().size();
                    case BYTES -> entry.getBytes().getData().size();
                    case REFERENCE -> entry.getReference().getUriBytes().size();
                    case ENTRY_NOT_SET -> 0;
                });
        WorkspaceAppend whole = entry.toBuilder().setWorkspaceId(id).build();
        return agent.send("", Envelopes.About.NOTHING, whole).getResourceSequence();
    }

    /**
     * Returns a page of entries, oldest first. Sets the request's workspace_id and include_envelopes. The broker waits
     * up to the request's wait, at most 60 s, if no entry exists yet.
     */
    public ListEntriesResponse list(ListEntriesRequest request) {
        ListEntriesRequest asked = request.toBuilder()
                .setWorkspaceId(id)
                .setIncludeEnvelopes(isVerifying || request.getIncludeEnvelopes())
                .build();
        Duration within = Connection.CALL_TIMEOUT.plus(Times.toDuration(asked.getWait()));
        ListEntriesResponse page = connection.workspaces(stub -> stub.listEntries(asked), within);
        page.getEntriesList().forEach(this::check);
        return page;
    }

    /** Returns the topics that have entries, by name. */
    public List<WorkspaceTopic> topics() {
        ListTopicsRequest request = ListTopicsRequest.newBuilder().setWorkspaceId(id).build();
        return connection.workspaces(stub -> stub.listTopics(request), Connection.CALL_TIMEOUT).getTopicsList();
    }

    /** Returns the state of the workspace. */
    public dev.baton.v1.Workspace show() {
        GetWorkspaceRequest request = GetWorkspaceRequest.newBuilder().setWorkspaceId(id).build();
        return connection.workspaces(stub -> stub.getWorkspace(request), Connection.CALL_TIMEOUT).getWorkspace();
    }

    /**
     * Follows the workspace from after a number: each entry once and in order, or a gap that covers it. Without topics
     * it follows all of them. A caught_up comes once, after the entries that existed at the start. The last update is
     * closed, when the workspace takes no entry any more.
     */
    public Watch<WatchEntriesResponse> watch(long after, String... topics) {
        return agent.watch("workspace " + id, new Following(after, List.of(topics)));
    }

    /**
     * Waits until each of these topics has an entry. Returns the first entry of each, by the topic's normalised name; a
     * topic is missing in the answer if the time is over, or if the workspace closes before. Throws as {@link #list},
     * and {@link BatonException}, FIELD_INVALID, for a name that is no topic.
     */
    public Map<String, WorkspaceEntry> waitFor(Duration timeout, String... topics) throws InterruptedException {
        Set<String> wanted = Arrays.stream(topics).map(Workspace::topic).collect(Collectors.toCollection(HashSet::new));
        Map<String, WorkspaceEntry> found = new HashMap<>();
        Deadline deadline = Deadline.in(timeout);
        try (Watch<WatchEntriesResponse> updates = watch(0, topics)) {
            while (found.size() < wanted.size()) {
                Optional<WatchEntriesResponse> update = updates.next(deadline.leftAtMost(timeout));
                if (update.isEmpty()) {
                    return found; // the time is over, or the workspace is closed
                }
                if (update.get().hasEntry()) {
                    WorkspaceEntry entry = update.get().getEntry();
                    found.putIfAbsent(entry.getTopic(), entry);
                }
            }
            return found;
        }
    }

    /**
     * Returns the normalised name of a topic: trimmed, in lower case, each run of white space one "_"; then 1 to 128
     * letters, digits, "_", "-" and ".". Throws {@link BatonException}, FIELD_INVALID, for another name.
     */
    public static String topic(String name) {
        String normal = Arrays.stream(WHITE_SPACE.split(name))
                .filter(word -> !word.isEmpty())
                .map(word -> word.toLowerCase(Locale.ROOT))
                .collect(Collectors.joining("_"));
        boolean isTooLong = normal.codePointCount(0, normal.length()) > Limits.NAME_LENGTH_MAX;
        if (isTooLong || !TOPIC.matcher(normal).matches()) {
            String rule = "must be 1 to 128 letters, digits, \"_\", \"-\" and \".\", not \"" + name + "\"";
            List<FieldViolation> violations = List.of(new FieldViolation("topic", rule));
            throw new BatonException(
                    Status.Code.INVALID_ARGUMENT, "topic " + rule, "FIELD_INVALID", Map.of(), violations, null);
        }
        return normal;
    }

    /** Verifies an entry, if the workspace verifies: the author's signature, and that it covers what the entry shows. */
    void check(WorkspaceEntry entry) {
        if (!isVerifying) {
            return;
        }
        Envelope envelope = entry.getEnvelope();
        directory.verify(envelope);
        boolean isShown = Envelopes.payloadOf(envelope) instanceof WorkspaceAppend signed
                && signed.getWorkspaceId().equals(id)
                && topic(signed.getTopic()).equals(entry.getTopic())
                && envelope.getSenderId().equals(entry.getAuthorId())
                && envelope.getMessageId().equals(entry.getMessageId())
                && isSameContent(signed, entry);
        if (!isShown) {
            String text = "entry " + entry.getSequence() + " differs from its envelope";
            throw new VerificationException("ENTRY_INVALID", text);
        }
    }

    private static boolean isSameContent(WorkspaceAppend signed, WorkspaceEntry entry) {
        boolean isSameTime = signed.hasSourceTime() == entry.hasSourceTime()
                && signed.getSourceTime().equals(entry.getSourceTime());
        return isSameTime
                && switch (signed.getEntryCase()) {
                    case JSON -> entry.hasJson() && entry.getJson().equals(signed.getJson());
                    case BYTES -> entry.hasBytes() && entry.getBytes().equals(signed.getBytes());
                    case REFERENCE -> entry.hasReference() && entry.getReference().equals(signed.getReference());
                    case ENTRY_NOT_SET -> false;
                };
    }

    /** The calls of a watch. Only the watch's thread uses it. */
    private final class Following implements Watch.Source<WatchEntriesResponse> {
        private final List<String> topics;
        private long after;
        private boolean isCaughtUp;

        Following(long after, List<String> topics) {
            this.after = after;
            this.topics = topics;
        }

        @Override
        public Iterator<WatchEntriesResponse> open() {
            WatchEntriesRequest request = WatchEntriesRequest.newBuilder()
                    .setWorkspaceId(id)
                    .addAllTopics(topics)
                    .setAfterSequence(after)
                    .setIncludeEnvelopes(isVerifying)
                    .build();
            return connection.watchWorkspaces(stub -> stub.watchEntries(request));
        }

        @Override
        public boolean take(WatchEntriesResponse update) {
            switch (update.getUpdateCase()) {
                case ENTRY -> {
                    check(update.getEntry());
                    after = update.getEntry().getSequence();
                }
                case GAP -> after = Math.max(after, update.getGap().getLastNumber());
                case CAUGHT_UP -> {
                    // Entries of other topics need not be looked at again.
                    after = Math.max(after, update.getCaughtUp().getLastSequence());
                    boolean wasCaughtUp = isCaughtUp;
                    isCaughtUp = true;
                    return !wasCaughtUp;
                }
                case CLOSED -> {}
                case UPDATE_NOT_SET -> {
                    return false; // of a newer schema
                }
            }
            return true;
        }

        @Override
        public boolean isLast(WatchEntriesResponse update) {
            return update.hasClosed();
        }
    }
}
