package dev.baton;

import com.google.protobuf.ByteString;
import dev.baton.v1.ContextDelta;
import dev.baton.v1.ContextFilter;
import dev.baton.v1.ContextSection;
import dev.baton.v1.ContextVersion;
import dev.baton.v1.GetContextRequest;
import dev.baton.v1.GetContextSectionRequest;
import dev.baton.v1.GetContextSectionResponse;
import dev.baton.v1.HistoryFilter;
import dev.baton.v1.ListContextVersionsRequest;
import dev.baton.v1.SectionInfo;
import dev.baton.v1.SectionWish;
import java.util.List;
import java.util.Optional;

/** The versions of the contexts of tasks, and their sections. {@link Agent#contexts} returns it. */
public final class Contexts {
    /** The number of versions among which a section that a context does not have is looked for. */
    private static final int VERSIONS_LOOKED_AT = 50;

    private final Connection connection;
    private final KnownSections known;

    Contexts(Connection connection, KnownSections known) {
        this.connection = connection;
        this.known = known;
    }

    /** Returns a wish for a whole section, for HandoffAccept.wishes. */
    public static SectionWish want(String name) {
        return SectionWish.newBuilder().setName(name).build();
    }

    /**
     * Returns a wish for a section as a change to the one that this agent has, for HandoffAccept.wishes. The owner sends
     * it whole where that is less, or where it does not have this version.
     */
    public static SectionWish wantChanges(ContextSection have) {
        return SectionWish.newBuilder()
                .setName(have.getName())
                .setHaveSha256(digestOf(have))
                .build();
    }

    /**
     * Returns a wish for the latest entries of a history, for HandoffAccept.wishes. The owner's client filters, and sends
     * the section whole if the filter does not fit.
     */
    public static SectionWish wantLast(String name, int entriesCount) {
        ContextFilter filter = ContextFilter.newBuilder()
                .setHistory(HistoryFilter.HISTORY_FILTER_LAST)
                .setLast(entriesCount)
                .build();
        return SectionWish.newBuilder().setName(name).setFilter(filter).build();
    }

    /**
     * Returns one version of a task's context, without the contents of its sections; 0: the latest one. Throws
     * {@link BatonException}: CONTEXT_VERSION_UNKNOWN, TASK_UNKNOWN or PERMISSION_DENIED.
     */
    public ContextVersion version(String taskId, long version) {
        GetContextRequest request =
                GetContextRequest.newBuilder().setTaskId(taskId).setVersion(version).build();
        return connection.contexts(stub -> stub.getContext(request)).getVersion();
    }

    /** Returns the latest versions of a task's context that this agent may read, newest first, at most 1000. */
    public List<ContextVersion> versions(String taskId, int versionsMax) {
        ListContextVersionsRequest request = ListContextVersionsRequest.newBuilder()
                .setTaskId(taskId)
                .setPageSize(versionsMax)
                .build();
        return connection.contexts(stub -> stub.listContextVersions(request)).getVersionsList();
    }

    /**
     * Returns one section as the request asks for it: whole, as a change to the version that the caller has, or a part
     * of it. Throws {@link VerificationException}, CONTEXT_DIGEST_MISMATCH, if a whole content does not have the digest
     * that the answer names; {@link BatonException}, FIELD_INVALID, for a filter that does not fit.
     */
    public GetContextSectionResponse section(GetContextSectionRequest request) {
        GetContextSectionResponse answer = connection.contexts(stub -> stub.getContextSection(request));
        ContextSection section = sectionOf(answer);
        boolean isWhole = !answer.getDerived() && section.getContentCase() != ContextSection.ContentCase.CONTENT_NOT_SET;
        if (isWhole && !digestOf(section).equals(answer.getSection().getSha256())) {
            throw wrong(request.getName());
        }
        return answer;
    }

    /** Returns the whole sections of the latest version of a task's context; empty if this agent may read none. */
    List<ContextSection> latest(String taskId) {
        ContextVersion version;
        try {
            version = version(taskId, 0);
        } catch (BatonException e) {
            if (e.isPassing()) {
                throw e;
            }
            return List.of();
        }
        return version.getSectionsList().stream()
                .map(info -> whole(taskId, version.getVersion(), info))
                .toList();
    }

    /** Fetches the section that a message has as a change, or does not have: see {@link Takeover#fetch}. */
    Optional<ContextSection> fetch(String taskId, String name, Optional<ContextSection> sent) {
        Optional<ContextSection> applied = sent.flatMap(section -> applied(taskId, section));
        if (applied.isPresent()) {
            return applied;
        }
        for (ContextVersion version : versions(taskId, VERSIONS_LOOKED_AT)) {
            for (SectionInfo info : version.getSectionsList()) {
                boolean isIt = sent.isEmpty() || digestOf(sent.get()).equals(info.getSha256());
                if (info.getName().equals(name) && isIt && !version.getDigestsOnly()) {
                    ContextSection whole = whole(taskId, version.getVersion(), info);
                    known.note(taskId, List.of(whole));
                    return Optional.of(whole);
                }
            }
        }
        if (sent.isPresent()) {
            throw wrong(name);
        }
        return Optional.empty();
    }

    /** Returns a section with the content that its delta gives, if this process has the base. */
    private Optional<ContextSection> applied(String taskId, ContextSection section) {
        ContextDelta delta = section.getDelta();
        String base = known.find(taskId, section.getName(), delta.getBaseSha256());
        if (base == null) {
            return Optional.empty();
        }
        try {
            String text = Sections.applyDelta(base, delta.getMergePatch());
            ContextSection whole = section.toBuilder().setJson(text).build();
            if (!digestOf(whole).equals(delta.getResultSha256())) {
                return Optional.empty();
            }
            known.note(taskId, List.of(whole));
            return Optional.of(whole);
        } catch (SectionException e) {
            return Optional.empty(); // the broker's content decides
        }
    }

    private ContextSection whole(String taskId, long version, SectionInfo info) {
        GetContextSectionRequest request = GetContextSectionRequest.newBuilder()
                .setTaskId(taskId)
                .setName(info.getName())
                .setVersion(version)
                .build();
        ContextSection section = sectionOf(section(request));
        boolean isEmpty = section.getContentCase() == ContextSection.ContentCase.CONTENT_NOT_SET;
        if (isEmpty || !digestOf(section).equals(info.getSha256())) {
            throw wrong(info.getName());
        }
        return section;
    }

    private static ByteString digestOf(ContextSection section) {
        return ByteString.copyFrom(Signing.sectionDigest(section));
    }

    /** Returns a section with the content of an answer. It has no content if the answer has none of its own. */
    private static ContextSection sectionOf(GetContextSectionResponse answer) {
        SectionInfo info = answer.getSection();
        ContextSection.Builder section = ContextSection.newBuilder()
                .setName(info.getName())
                .setSchemaId(info.getSchemaId())
                .setSchemaVersion(info.getSchemaVersion())
                .setSecret(info.getSecret())
                .setSummary(info.getSummary());
        return switch (answer.getContentCase()) {
            case JSON -> section.setJson(answer.getJson()).build();
            case BYTES -> section.setBytes(answer.getBytes()).build();
            case REFERENCE -> section.setReference(answer.getReference()).build();
            case DELTA, NOT_MODIFIED, CONTENT_NOT_SET -> section.build();
        };
    }

    private static VerificationException wrong(String name) {
        String text = "section " + name + " does not have the digest that was signed";
        return new VerificationException("CONTEXT_DIGEST_MISMATCH", text);
    }
}
