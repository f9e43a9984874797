package baton

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	numberMax       = 1<<53 - 1
	levelsMax       = 127
	pointersMax     = 64
	pointerBytesMax = 1024
	// The bytes that a delta has besides its patch.
	deltaBytes = 96
)

// ErrSection is the cause of an error of ApplyDelta and FilterSection: a text is no JSON that a delta or a filter can work
// on, or a filter does not fit it.
var ErrSection = errors.New("baton: the section does not fit")

// Matches each escape of a JSON string. The second group matches half of a character.
var escapes = regexp.MustCompile(`\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)`)

var badEscape = regexp.MustCompile(`~([^01]|$)`)

var listIndex = regexp.MustCompile(`^(0|[1-9][0-9]{0,9})$`)

// ApplyDelta applies a JSON Merge Patch (RFC 7396) to the text of a section. It returns the result as canonical JSON (RFC
// 8785), and fails with ErrSection.
func ApplyDelta(base, patch string) (string, error) {
	from, err := parseJSON(base)
	if err != nil {
		return "", err
	}
	change, err := parseJSON(patch)
	if err != nil {
		return "", err
	}
	switch result := merged(from, change).(type) {
	case map[string]any, []any:
		return canonical(result)
	}
	return "", unfit("the result must be a JSON object or list")
}

// DeltaBetween returns the delta from the text of a section to a later one, and that one as canonical JSON. It returns nil
// if no merge patch gives it, for a changed object of it has a member that is null, or if one of the two is no JSON that
// a delta can work on.
func DeltaBetween(base, target string) (*v1.ContextDelta, string) {
	from, err := parseJSON(base)
	if err != nil {
		return nil, ""
	}
	to, err := parseJSON(target)
	if err != nil {
		return nil, ""
	}
	// Neither fails: each is of the levels that were parsed.
	patch, _ := canonical(patchBetween(from, to))
	result, _ := canonical(to)
	if made, err := ApplyDelta(base, patch); err != nil || made != result {
		return nil, ""
	}
	before, after := sha256.Sum256([]byte(base)), sha256.Sum256([]byte(result))
	return &v1.ContextDelta{BaseSha256: before[:], MergePatch: patch, ResultSha256: after[:]}, result
}

// FilterSection returns the part of a JSON section that a filter keeps, as canonical JSON. summary is the section's. It
// fails with ErrSection.
func FilterSection(text string, filter *v1.ContextFilter, summary string) (string, error) {
	if isBadFilter(filter) {
		return "", unfit("the filter breaks a rule of its form")
	}
	value, err := parseJSON(text)
	if err != nil {
		return "", err
	}
	if pointers := filter.GetJsonPointers(); len(pointers) > 0 {
		found := map[string]any{}
		for _, pointer := range pointers {
			if part, is := resolved(value, pointer); is {
				found[pointer] = part
			}
		}
		return canonical(found)
	}
	entries, err := checkHistory(value)
	if err != nil {
		return "", unfit(fmt.Sprintf("a history filter needs a history: %v", err))
	}
	switch filter.GetHistory() {
	case v1.HistoryFilter_HISTORY_FILTER_LAST:
		return canonical(latestOf(entries, filter.GetLast()))
	case v1.HistoryFilter_HISTORY_FILTER_WITHOUT_TOOL_CALLS:
		kept := withoutToolCalls(entries)
		if filter.GetLast() > 0 {
			kept = latestOf(kept, filter.GetLast())
		}
		return canonical(kept)
	case v1.HistoryFilter_HISTORY_FILTER_SUMMARY:
		return canonical(map[string]any{"summary": summary, "entries": float64(len(entries))})
	}
	return canonical(value)
}

// forWishes returns the sections that a candidate has asked for: the named ones, filtered, and as deltas where that is
// less; all sections if it names none. known finds the base that the candidate has. A section that the filter does not
// fit is left out, for whole it would have what the filter is to keep back; so is one in a schema version that the
// candidate does not read.
func forWishes(
	sections []*v1.ContextSection, accept *v1.HandoffAccept, known func(name string, digest []byte) string,
) []*v1.ContextSection {
	wishes := map[string]*v1.SectionWish{}
	for _, wish := range accept.GetWishes() {
		wishes[wish.GetName()] = wish
	}
	if len(wishes) == 0 && len(accept.GetWantedSections()) == 0 {
		return sections
	}
	var wanted []*v1.ContextSection
	for _, section := range sections {
		wish := wishes[section.GetName()]
		if wish == nil && !slices.Contains(accept.GetWantedSections(), section.GetName()) {
			continue
		}
		versions := wish.GetSchemaVersions()
		if section.GetSchemaId() != "" && len(versions) > 0 && !slices.Contains(versions, section.GetSchemaVersion()) {
			continue
		}
		if part := forWish(section, wish, known); part != nil {
			wanted = append(wanted, part)
		}
	}
	return wanted
}

// forWish returns the section as it is wished, or nil if the filter does not fit.
func forWish(
	section *v1.ContextSection, wish *v1.SectionWish, known func(name string, digest []byte) string,
) *v1.ContextSection {
	content, is := section.GetContent().(*v1.ContextSection_Json)
	filter := wish.GetFilter()
	if !is || wish == nil {
		if filter != nil {
			return nil
		}
		return section
	}
	text := content.Json
	if filter != nil {
		part, err := FilterSection(text, filter, section.GetSummary())
		if err != nil {
			return nil
		}
		text = part
		if len(filter.GetJsonPointers()) > 0 || filter.GetHistory() == v1.HistoryFilter_HISTORY_FILTER_SUMMARY {
			// The schema is not about a part of another shape.
			section = withContent(section, &v1.ContextSection{})
			section.SchemaId, section.SchemaVersion = "", ""
		}
	}
	if len(wish.GetHaveSha256()) > 0 {
		if delta, _ := smaller(known(section.GetName(), wish.GetHaveSha256()), text); delta != nil {
			return withContent(section, &v1.ContextSection{Content: &v1.ContextSection_Delta{Delta: delta}})
		}
	}
	return withContent(section, &v1.ContextSection{Content: &v1.ContextSection_Json{Json: text}})
}

// withDeltas returns the sections with deltas where that is less, and whole, with the contents that the deltas give. known
// returns the base of a section, or "".
func withDeltas(sections []*v1.ContextSection, known func(name string) string) (short, whole []*v1.ContextSection) {
	for _, section := range sections {
		shortest, complete := section, section
		if content, is := section.GetContent().(*v1.ContextSection_Json); is {
			if delta, result := smaller(known(section.GetName()), content.Json); delta != nil {
				shortest = withContent(section, &v1.ContextSection{Content: &v1.ContextSection_Delta{Delta: delta}})
				complete = withContent(section, &v1.ContextSection{Content: &v1.ContextSection_Json{Json: result}})
			}
		}
		short, whole = append(short, shortest), append(whole, complete)
	}
	return short, whole
}

// smaller returns the delta from a base, which is "" without one, if the delta has fewer bytes than the text.
func smaller(base, text string) (*v1.ContextDelta, string) {
	if base == "" {
		return nil, ""
	}
	delta, result := DeltaBetween(base, text)
	if len(delta.GetMergePatch())+deltaBytes >= len(text) {
		return nil, ""
	}
	return delta, result
}

// withContent gives the content the name and the other fields of a section.
func withContent(section, content *v1.ContextSection) *v1.ContextSection {
	content.Name, content.Summary, content.Secret = section.GetName(), section.GetSummary(), section.GetSecret()
	content.SchemaId, content.SchemaVersion = section.GetSchemaId(), section.GetSchemaVersion()
	return content
}

func patchBetween(base, target any) any {
	from, isFrom := base.(map[string]any)
	to, isTo := target.(map[string]any)
	if !isFrom || !isTo {
		return target
	}
	patch := map[string]any{}
	for name := range from {
		if _, stays := to[name]; !stays {
			patch[name] = nil
		}
	}
	for name, value := range to {
		before, was := from[name]
		if !was {
			patch[name] = value
		} else if !reflect.DeepEqual(before, value) {
			patch[name] = patchBetween(before, value)
		}
	}
	return patch
}

func merged(target, patch any) any {
	change, is := patch.(map[string]any)
	if !is {
		return patch
	}
	members := map[string]any{}
	if before, is := target.(map[string]any); is {
		for name, value := range before {
			members[name] = value
		}
	}
	for name, value := range change {
		if value == nil {
			delete(members, name)
		} else {
			members[name] = merged(members[name], value)
		}
	}
	return members
}

// resolved returns the value at a JSON Pointer (RFC 6901), and whether there is one.
func resolved(value any, pointer string) (any, bool) {
	if pointer == "" {
		return value, true
	}
	for step := range strings.SplitSeq(pointer[1:], "/") {
		name := strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		switch at := value.(type) {
		case map[string]any:
			member, is := at[name]
			if !is {
				return nil, false
			}
			value = member
		case []any:
			index, err := strconv.ParseUint(name, 10, 64)
			if err != nil || !listIndex.MatchString(name) || index >= uint64(len(at)) {
				return nil, false
			}
			value = at[index]
		default:
			return nil, false
		}
	}
	return value, true
}

func isBadFilter(filter *v1.ContextFilter) bool {
	pointers, history := filter.GetJsonPointers(), filter.GetHistory()
	isLast := history == v1.HistoryFilter_HISTORY_FILTER_LAST
	takesLast := isLast || history == v1.HistoryFilter_HISTORY_FILTER_WITHOUT_TOOL_CALLS
	_, isDefined := v1.HistoryFilter_name[int32(history)]
	isOne := (len(pointers) > 0) != (history != v1.HistoryFilter_HISTORY_FILTER_UNSPECIFIED)
	seen := map[string]bool{}
	for _, pointer := range pointers {
		isPointer := pointer == "" || strings.HasPrefix(pointer, "/")
		if !isPointer || len(pointer) > pointerBytesMax || badEscape.MatchString(pointer) || seen[pointer] {
			return true
		}
		seen[pointer] = true
	}
	return !isDefined || !isOne || len(pointers) > pointersMax || isLast && filter.GetLast() == 0 || filter.GetLast() > 0 && !takesLast
}

// parseJSON parses JSON without duplicate names, without numbers beyond 2^53 - 1, and of at most 127 levels. Numbers are
// float64.
func parseJSON(text string) (any, error) {
	if !utf8.ValidString(text) || !json.Valid([]byte(text)) {
		return nil, unfit("the text is no JSON")
	}
	for _, found := range escapes.FindAllStringSubmatch(text, -1) {
		if found[2] != "" {
			return nil, unfit("an escape is half of a character")
		}
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	return parseValue(decoder, 0)
}

func parseValue(decoder *json.Decoder, level int) (any, error) {
	if level > levelsMax {
		return nil, tooDeep()
	}
	token, err := decoder.Token()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, unfit(err.Error())
	}
	switch token := token.(type) {
	case json.Number:
		number, err := token.Float64()
		if err != nil || math.Abs(number) > numberMax {
			return nil, unfit("a number is beyond 2^53 - 1")
		}
		return number, nil
	case json.Delim:
		if token == '[' {
			return parseList(decoder, level)
		}
		return parseObject(decoder, level)
	}
	return token, nil
}

func parseList(decoder *json.Decoder, level int) (any, error) {
	list := []any{}
	for decoder.More() {
		item, err := parseValue(decoder, level+1)
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	_, err := decoder.Token()
	return list, err
}

func parseObject(decoder *json.Decoder, level int) (any, error) {
	members := map[string]any{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, unfit(err.Error())
		}
		name := token.(string)
		if _, is := members[name]; is {
			return nil, unfit("a name occurs twice")
		}
		if members[name], err = parseValue(decoder, level+1); err != nil {
			return nil, err
		}
	}
	_, err := decoder.Token()
	return members, err
}

// canonical returns the canonical JSON (RFC 8785) of a parsed value. It fails with ErrSection over 127 levels.
func canonical(value any) (string, error) {
	var out bytes.Buffer
	err := writeCanonical(&out, value, 0)
	return out.String(), err
}

func writeCanonical(out *bytes.Buffer, value any, level int) error {
	if level > levelsMax {
		return tooDeep()
	}
	switch value := value.(type) {
	case nil:
		out.WriteString("null")
	case bool:
		out.WriteString(strconv.FormatBool(value))
	case float64:
		out.WriteString(canonicalNumber(value))
	case string:
		writeString(out, value)
	case []any:
		out.WriteByte('[')
		for at, item := range value {
			if at > 0 {
				out.WriteByte(',')
			}
			if err := writeCanonical(out, item, level+1); err != nil {
				return err
			}
		}
		out.WriteByte(']')
	case map[string]any:
		out.WriteByte('{')
		for at, name := range canonicalNames(value) {
			if at > 0 {
				out.WriteByte(',')
			}
			writeString(out, name)
			out.WriteByte(':')
			if err := writeCanonical(out, value[name], level+1); err != nil {
				return err
			}
		}
		out.WriteByte('}')
	}
	return nil
}

// canonicalNames returns the names in the order of their UTF-16.
func canonicalNames(members map[string]any) []string {
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
	})
	return names
}

// canonicalNumber returns a number as ECMAScript writes it. Numbers of 2^53 and above do not occur.
func canonicalNumber(number float64) string {
	if number == 0 {
		return "0" // also for -0
	}
	if math.Abs(number) >= 1e-6 {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return strings.Replace(strconv.FormatFloat(number, 'e', -1, 64), "e-0", "e-", 1)
}

func writeString(out *bytes.Buffer, text string) {
	out.WriteByte('"')
	for _, char := range text {
		switch char {
		case '"', '\\':
			out.WriteByte('\\')
			out.WriteRune(char)
		case '\b':
			out.WriteString(`\b`)
		case '\f':
			out.WriteString(`\f`)
		case '\n':
			out.WriteString(`\n`)
		case '\r':
			out.WriteString(`\r`)
		case '\t':
			out.WriteString(`\t`)
		default:
			if char < ' ' {
				fmt.Fprintf(out, `\u%04x`, char)
			} else {
				out.WriteRune(char)
			}
		}
	}
	out.WriteByte('"')
}

func tooDeep() error { return unfit(fmt.Sprintf("the JSON nests deeper than %d levels", levelsMax)) }

func unfit(text string) error { return fmt.Errorf("%w: %s", ErrSection, text) }
