package dev.baton;

import com.google.protobuf.ByteString;
import dev.baton.v1.ContextDelta;
import dev.baton.v1.ContextFilter;
import dev.baton.v1.ContextReference;
import dev.baton.v1.ContextSection;
import dev.baton.v1.HistoryFilter;
import dev.baton.v1.SectionWish;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.regex.Pattern;

/** The contents of context sections: deltas and filters, the same in every language. */
public final class Sections {
    private static final int POINTERS_MAX = 64;
    private static final int POINTER_BYTES_MAX = 1024;
    /** The bytes that a delta has besides its patch. */
    private static final int DELTA_BYTES = 96;
    private static final Pattern BAD_ESCAPE = Pattern.compile("~(?![01])");
    private static final Pattern INDEX = Pattern.compile("0|[1-9][0-9]{0,9}");

    private Sections() {}

    /**
     * A delta and the content that it gives.
     *
     * @param delta the delta
     * @param result the later text of the section, as canonical JSON
     */
    public record Change(ContextDelta delta, String result) {}

    /**
     * The sections of a context as they are sent, and whole.
     *
     * @param sent the sections, those with a delta where that is less
     * @param whole the sections with the contents that the deltas give
     */
    record Shortened(List<ContextSection> sent, List<ContextSection> whole) {}

    /** Returns a section that refers to a content, for example by {@link Blobs#reference}. */
    public static ContextSection referenceSection(String name, ContextReference reference) {
        return ContextSection.newBuilder().setName(name).setReference(reference).build();
    }

    /**
     * Applies a JSON Merge Patch (RFC 7396) to the text of a section. Returns the result as canonical JSON (RFC 8785).
     * Throws {@link SectionException}.
     */
    public static String applyDelta(String base, String patch) {
        Object result = merged(CanonicalJson.parse(base), CanonicalJson.parse(patch));
        if (!(result instanceof Map) && !(result instanceof List)) {
            throw new SectionException("the result must be a JSON object or list");
        }
        return CanonicalJson.write(result);
    }

    /**
     * Returns the delta from the text of a section to a later one. Empty: no merge patch gives it, for a changed object
     * of it has a member that is null, or one of the two is no JSON that a delta can work on.
     */
    public static Optional<Change> deltaBetween(String base, String target) {
        try {
            Object to = CanonicalJson.parse(target);
            String patch = CanonicalJson.write(patchBetween(CanonicalJson.parse(base), to));
            String result = CanonicalJson.write(to);
            if (!applyDelta(base, patch).equals(result)) {
                return Optional.empty();
            }
            ContextDelta delta = ContextDelta.newBuilder()
                    .setBaseSha256(sha256(base))
                    .setMergePatch(patch)
                    .setResultSha256(sha256(result))
                    .build();
            return Optional.of(new Change(delta, result));
        } catch (SectionException e) {
            return Optional.empty();
        }
    }

    /**
     * Returns the part of a JSON section that a filter keeps, as canonical JSON. The summary is the section's. Throws
     * {@link SectionException}.
     */
    public static String filter(String json, ContextFilter filter, String summary) {
        checkFilter(filter);
        Object value = CanonicalJson.parse(json);
        if (filter.getJsonPointersCount() > 0) {
            Map<String, Object> found = new TreeMap<>();
            for (String pointer : filter.getJsonPointersList()) {
                resolve(value, pointer).forEach(part -> found.put(pointer, part));
            }
            return CanonicalJson.write(found);
        }
        List<?> entries = History.check(value);
        return switch (filter.getHistory()) {
            case HISTORY_FILTER_LAST -> CanonicalJson.write(History.latestValues(entries, filter.getLast()));
            case HISTORY_FILTER_WITHOUT_TOOL_CALLS -> {
                List<Object> kept = History.valuesWithoutToolCalls(entries);
                yield CanonicalJson.write(filter.getLast() == 0 ? kept : History.latestValues(kept, filter.getLast()));
            }
            case HISTORY_FILTER_SUMMARY -> CanonicalJson.write(
                    Map.of("summary", summary, "entries", (double) entries.size()));
            case HISTORY_FILTER_FULL, HISTORY_FILTER_UNSPECIFIED, UNRECOGNIZED -> CanonicalJson.write(value);
        };
    }

    /**
     * Returns the sections that a candidate has asked for: the named ones, filtered, and as deltas where that is less;
     * all sections if it names none. {@code known} finds the base that the candidate has, or returns null. A section
     * that the filter does not fit is left out, for whole it would have what the filter is to keep back; so is one in a
     * schema version that the candidate does not read.
     */
    static List<ContextSection> forWishes(
            List<ContextSection> sections,
            List<String> wanted,
            List<SectionWish> wishes,
            BiFunction<String, ByteString, String> known) {
        if (wanted.isEmpty() && wishes.isEmpty()) {
            return sections;
        }
        Map<String, SectionWish> byName = new HashMap<>();
        wishes.forEach(wish -> byName.put(wish.getName(), wish));
        List<ContextSection> chosen = new ArrayList<>();
        for (ContextSection section : sections) {
            SectionWish wish = byName.get(section.getName());
            if (wish == null && wanted.contains(section.getName())) {
                chosen.add(section);
            } else if (wish != null && isRead(section, wish)) {
                forWish(section, wish, known).ifPresent(chosen::add);
            }
        }
        return chosen;
    }

    /** Returns the sections with deltas where that is less. {@code known} returns the base of a section, or null. */
    static Shortened withDeltas(List<ContextSection> sections, Function<String, String> known) {
        List<ContextSection> sent = new ArrayList<>();
        List<ContextSection> whole = new ArrayList<>();
        for (ContextSection section : sections) {
            String base = section.hasJson() ? known.apply(section.getName()) : null;
            Optional<Change> change = smaller(base, section.getJson());
            sent.add(change.map(made -> section.toBuilder().setDelta(made.delta()).build())
                    .orElse(section));
            whole.add(change.map(made -> section.toBuilder().setJson(made.result()).build())
                    .orElse(section));
        }
        return new Shortened(sent, whole);
    }

    /** Returns the digest of a text. */
    static ByteString sha256(String text) {
        return ByteString.copyFrom(Signing.sha256(text.getBytes(StandardCharsets.UTF_8)));
    }

    private static boolean isRead(ContextSection section, SectionWish wish) {
        List<String> versions = wish.getSchemaVersionsList();
        return section.getSchemaId().isEmpty() || versions.isEmpty() || versions.contains(section.getSchemaVersion());
    }

    private static Optional<ContextSection> forWish(
            ContextSection section, SectionWish wish, BiFunction<String, ByteString, String> known) {
        if (!section.hasJson()) {
            return wish.hasFilter() ? Optional.empty() : Optional.of(section);
        }
        String text = section.getJson();
        ContextSection.Builder sent = section.toBuilder();
        if (wish.hasFilter()) {
            ContextFilter filter = wish.getFilter();
            try {
                text = filter(text, filter, section.getSummary());
            } catch (SectionException e) {
                return Optional.empty();
            }
            boolean isSummary = filter.getHistory() == HistoryFilter.HISTORY_FILTER_SUMMARY;
            if (isSummary || filter.getJsonPointersCount() > 0) {
                sent.clearSchemaId().clearSchemaVersion(); // the schema is not about a part of another shape
            }
        }
        ByteString have = wish.getHaveSha256();
        Optional<Change> change = smaller(have.isEmpty() ? null : known.apply(section.getName(), have), text);
        ContextSection.Builder made =
                change.isPresent() ? sent.setDelta(change.get().delta()) : sent.setJson(text);
        return Optional.of(made.build());
    }

    /** Returns the change from a base, which may be null, if it has fewer bytes than the text. */
    private static Optional<Change> smaller(String base, String text) {
        if (base == null) {
            return Optional.empty();
        }
        int most = text.getBytes(StandardCharsets.UTF_8).length - DELTA_BYTES;
        return deltaBetween(base, text)
                .filter(made -> made.delta().getMergePatchBytes().size() < most);
    }

    private static Object patchBetween(Object base, Object target) {
        if (!(base instanceof Map<?, ?> from) || !(target instanceof Map<?, ?> to)) {
            return target;
        }
        Map<String, Object> patch = new TreeMap<>();
        for (Object name : from.keySet()) {
            if (!to.containsKey(name)) {
                patch.put((String) name, null);
            }
        }
        for (Map.Entry<?, ?> member : to.entrySet()) {
            String name = (String) member.getKey();
            if (!from.containsKey(name)) {
                patch.put(name, member.getValue());
            } else if (!Objects.equals(from.get(name), member.getValue())) {
                patch.put(name, patchBetween(from.get(name), member.getValue()));
            }
        }
        return patch;
    }

    private static Object merged(Object target, Object patch) {
        if (!(patch instanceof Map<?, ?> changes)) {
            return patch;
        }
        Map<String, Object> members = new TreeMap<>();
        if (target instanceof Map<?, ?> before) {
            before.forEach((name, value) -> members.put((String) name, value));
        }
        changes.forEach((name, value) -> {
            if (value == null) {
                members.remove((String) name);
            } else {
                members.put((String) name, merged(members.get((String) name), value));
            }
        });
        return members;
    }

    /** Returns the value at a JSON Pointer (RFC 6901) in a list; an empty list without a value. */
    private static List<Object> resolve(Object value, String pointer) {
        Object at = value;
        String[] steps = pointer.split("/", -1);
        for (int step = 1; step < steps.length; step++) {
            String name = steps[step].replace("~1", "/").replace("~0", "~");
            if (at instanceof Map<?, ?> members && members.containsKey(name)) {
                at = members.get(name);
            } else if (at instanceof List<?> list
                    && INDEX.matcher(name).matches()
                    && Long.parseLong(name) < list.size()) {
                at = list.get(Integer.parseInt(name));
            } else {
                return List.of();
            }
        }
        List<Object> found = new ArrayList<>();
        found.add(at); // may be null
        return found;
    }

    private static void checkFilter(ContextFilter filter) {
        List<String> pointers = filter.getJsonPointersList();
        HistoryFilter history = filter.getHistory();
        Set<String> seen = new HashSet<>(pointers);
        boolean isLast = history == HistoryFilter.HISTORY_FILTER_LAST;
        boolean takesLast = isLast || history == HistoryFilter.HISTORY_FILTER_WITHOUT_TOOL_CALLS;
        boolean isOne = pointers.isEmpty() != (history == HistoryFilter.HISTORY_FILTER_UNSPECIFIED);
        boolean isGood = history != HistoryFilter.UNRECOGNIZED
                && isOne
                && !(isLast && filter.getLast() == 0)
                && (filter.getLast() == 0 || takesLast)
                && pointers.size() <= POINTERS_MAX
                && seen.size() == pointers.size()
                && pointers.stream().allMatch(Sections::isPointer);
        if (!isGood) {
            throw new SectionException("the filter breaks a rule of its form");
        }
    }

    private static boolean isPointer(String pointer) {
        return (pointer.isEmpty() || pointer.startsWith("/"))
                && pointer.getBytes(StandardCharsets.UTF_8).length <= POINTER_BYTES_MAX
                && !BAD_ESCAPE.matcher(pointer).find();
    }
}
