package baton

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	v1 "github.com/baton-broker/baton/clients/go/batonv1"
)

const (
	payloadField   = "envelope.payload."
	resultField    = payloadField + "result_json"
	dataField      = payloadField + "data_json"
	inputField     = payloadField + "input_json"
	resultBytesMax = 262144
	dataBytesMax   = 65536
	// The objects and arrays inside each other that the broker takes.
	jsonLevelsMax   = 128
	pointerShownMax = 200
)

// JSONText returns the JSON text of a value that encoding/json encodes as an object, for a field of a message of batonv1
// whose name ends in Json: an input, data, sections, settings, parameters. It arrives as it was sent. JSONText fails with an
// Error, FIELD_INVALID, whose Fields have the JSON pointer of what the broker would refuse: a number that is not finite, a
// text that is not valid UTF-8 or has half a surrogate pair, a name that occurs twice, or more than 128 objects and arrays
// inside each other.
func JSONText(value any) (string, error) { return jsonText("value", value, 0) }

// JSONObject decodes the JSON text of a message: numbers are json.Number, which keeps each digit. An empty text is an empty
// object. To decode into a value of your own, use json.Unmarshal.
func JSONObject(text string) (map[string]any, error) {
	object := map[string]any{}
	if text == "" {
		return object, nil
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	err := decoder.Decode(&object)
	return object, err
}

// objectOf is JSONObject for a text that the broker has checked.
func objectOf(text string) map[string]any {
	object, err := JSONObject(text)
	if err != nil || object == nil {
		return map[string]any{}
	}
	return object
}

// decodeInto decodes an object of JSON into a value, with each digit of its numbers.
func decodeInto(object map[string]any, into any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// checkPayload refuses a payload whose JSON the broker is known to refuse.
func checkPayload(payload proto.Message) error {
	switch payload := payload.(type) {
	case *v1.TaskStatusUpdate:
		return checkJSON(resultField, payload.GetResultJson(), resultBytesMax)
	case *v1.TaskInput:
		return checkJSON(dataField, payload.GetDataJson(), dataBytesMax)
	case *v1.Info:
		return checkJSON(dataField, payload.GetDataJson(), 0)
	case *v1.Delegation:
		return checkJSON(inputField, payload.GetInputJson(), 0)
	case *v1.PlanSubmission:
		if err := checkJSON(payloadField+"plan.input_json", payload.GetPlan().GetInputJson(), 0); err != nil {
			return err
		}
		for i, one := range payload.GetPlan().GetSubtasks() {
			if err := checkJSON(fmt.Sprintf("%splan.subtasks[%d].input_json", payloadField, i), one.GetInputJson(), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// jsonText encodes a value as the JSON text of a field, at most bytesMax bytes unless that is 0. A nil map or pointer has an
// empty text.
func jsonText(field string, value any, bytesMax int) (string, error) {
	if at, problem := wrongValue(value, "", 0); problem != "" {
		return "", invalidAt(field, at, problem)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "", invalidAt(field, "", "cannot be encoded as JSON: "+err.Error())
	}
	made := strings.TrimSuffix(text.String(), "\n")
	if made == "null" {
		return "", nil
	}
	return made, checkJSON(field, made, bytesMax)
}

// wrongValue finds what encoding/json encodes as another value, or refuses without its place: the pointer, and the problem.
func wrongValue(value any, pointer string, level int) (at, problem string) {
	switch value := value.(type) {
	case string:
		return pointer, wrongText(value)
	case float64:
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return pointer, fmt.Sprintf("must have finite numbers only, not %v", value)
		}
	case float32:
		return wrongValue(float64(value), pointer, level)
	case map[string]any:
		if level == jsonLevelsMax {
			return pointer, nestedTooDeep
		}
		for name, one := range value {
			if problem := wrongText(name); problem != "" {
				return pointer, problem
			}
			if at, problem := wrongValue(one, pointer+"/"+escaped(name), level+1); problem != "" {
				return at, problem
			}
		}
	case []any:
		if level == jsonLevelsMax {
			return pointer, nestedTooDeep
		}
		for i, one := range value {
			if at, problem := wrongValue(one, fmt.Sprintf("%s/%d", pointer, i), level+1); problem != "" {
				return at, problem
			}
		}
	case []map[string]any:
		for i, one := range value {
			if at, problem := wrongValue(one, fmt.Sprintf("%s/%d", pointer, i), level+1); problem != "" {
				return at, problem
			}
		}
	case nil, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, json.Number:
	default:
		if _, err := json.Marshal(value); err != nil {
			return pointer, "cannot be encoded as JSON: " + err.Error()
		}
	}
	return "", ""
}

func wrongText(text string) string {
	if utf8.ValidString(text) {
		return ""
	}
	return fmt.Sprintf("has a text that is not valid UTF-8: %.40q", text)
}

var nestedTooDeep = fmt.Sprintf("is nested too deep: the limit is %d objects and arrays inside each other", jsonLevelsMax)

// checkJSON refuses a text of JSON that the broker refuses. An empty text is none.
func checkJSON(field, text string, bytesMax int) error {
	if text == "" {
		return nil
	}
	if !utf8.ValidString(text) {
		return invalidAt(field, "", wrongText(text))
	}
	r := &jsonReader{text: text, decoder: json.NewDecoder(strings.NewReader(text))}
	r.decoder.UseNumber()
	isObject := strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{")
	switch at, problem := r.value("", 0); {
	case problem != "":
		return invalidAt(field, at, problem)
	case !isObject || r.decoder.More():
		return invalidAt(field, "", "must be a JSON object")
	case bytesMax > 0 && len(text) > bytesMax:
		return invalidAt(field, "", fmt.Sprintf(
			"has %d bytes as JSON, over the limit of %d; store it elsewhere and send a reference to it", len(text), bytesMax))
	}
	return nil
}

// jsonReader finds the first thing in a text that the broker refuses.
type jsonReader struct {
	text    string
	decoder *json.Decoder
}

// value reads one value: the pointer and the problem of what is wrong in it.
func (r *jsonReader) value(pointer string, level int) (at, problem string) {
	token, problem := r.token()
	if problem != "" {
		return pointer, problem
	}
	switch token := token.(type) {
	case json.Number:
		if number, err := strconv.ParseFloat(token.String(), 64); err != nil || math.IsInf(number, 0) {
			return pointer, fmt.Sprintf("must have finite numbers only, not %.40s", token)
		}
	case json.Delim:
		if level == jsonLevelsMax {
			return pointer, nestedTooDeep
		}
		if at, problem := r.members(token == '{', pointer, level); problem != "" {
			return at, problem
		}
		_, problem = r.token() // the end
		return pointer, problem
	}
	return "", ""
}

// members reads the members of an object or an array, up to its end.
func (r *jsonReader) members(isObject bool, pointer string, level int) (at, problem string) {
	seen := map[string]bool{}
	for i := 0; r.decoder.More(); i++ {
		name := strconv.Itoa(i)
		if isObject {
			token, problem := r.token()
			if problem != "" {
				return pointer, problem
			}
			if name, _ = token.(string); seen[name] {
				return pointer, fmt.Sprintf("has the name %.40q twice", name)
			}
			seen[name] = true
		}
		if at, problem := r.value(pointer+"/"+escaped(name), level+1); problem != "" {
			return at, problem
		}
	}
	return "", ""
}

// token reads a token. A decoder replaces half a surrogate pair, so this looks at the text itself.
func (r *jsonReader) token() (token json.Token, problem string) {
	from := r.decoder.InputOffset()
	token, err := r.decoder.Token()
	if err != nil {
		return nil, "is not JSON: " + err.Error()
	}
	raw := r.text[from:r.decoder.InputOffset()]
	if at := loneSurrogate(raw); at >= 0 {
		return nil, "has half a surrogate pair, " + raw[at:at+6]
	}
	return token, ""
}

// loneSurrogate returns the place of an escape of half a surrogate pair in JSON, or -1.
func loneSurrogate(text string) int {
	unit := func(at int) uint64 {
		if at+6 > len(text) || text[at] != '\\' || text[at+1] != 'u' {
			return 0
		}
		value, _ := strconv.ParseUint(text[at+2:at+6], 16, 16)
		return value
	}
	for at := 0; at < len(text); at++ {
		if text[at] != '\\' {
			continue
		}
		switch first := unit(at); {
		case first >= 0xd800 && first < 0xdc00:
			if second := unit(at + 6); second < 0xdc00 || second > 0xdfff {
				return at
			}
			at += 11
		case first >= 0xdc00 && first <= 0xdfff:
			return at
		default:
			at++ // the escaped character
		}
	}
	return -1
}

// escaped returns a name as a step of a JSON pointer.
func escaped(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func invalidAt(field, pointer, problem string) error {
	if pointer != "" {
		problem += fmt.Sprintf(", at %.*s", pointerShownMax, pointer)
	}
	return invalid([]FieldViolation{{field, problem}})
}
