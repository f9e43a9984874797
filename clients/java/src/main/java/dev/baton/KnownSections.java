package dev.baton;

import com.google.protobuf.ByteString;
import dev.baton.v1.ContextSection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The JSON that this process has sent or received, as bases of deltas: the latest text of each section of a task. */
final class KnownSections {
    private static final int LENGTH_MAX = 64 * 1024 * 1024;

    private record Name(String taskId, String section) {}

    private final Map<Name, String> texts = new HashMap<>();
    private long length;

    /** Returns the latest text of a section, or null. */
    synchronized String get(String taskId, String section) {
        return texts.get(new Name(taskId, section));
    }

    /** Returns the latest text of a section if it has this digest, or null. */
    String find(String taskId, String section, ByteString sha256) {
        String text = get(taskId, section);
        return text != null && Sections.sha256(text).equals(sha256) ? text : null;
    }

    /** Stores the JSON sections of a context. Over 64 Mi characters, all other texts are dropped. */
    synchronized void note(String taskId, List<ContextSection> sections) {
        for (ContextSection section : sections) {
            if (!section.hasJson()) {
                continue;
            }
            Name name = new Name(taskId, section.getName());
            length += section.getJson().length() - texts.getOrDefault(name, "").length();
            if (length > LENGTH_MAX) {
                texts.clear();
                length = section.getJson().length();
            }
            texts.put(name, section.getJson());
        }
    }

    /** Drops the texts of a task. */
    synchronized void forget(String taskId) {
        texts.entrySet().removeIf(entry -> {
            boolean isOfTask = entry.getKey().taskId().equals(taskId);
            length -= isOfTask ? entry.getValue().length() : 0;
            return isOfTask;
        });
    }
}
