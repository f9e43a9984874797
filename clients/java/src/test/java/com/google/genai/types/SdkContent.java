package com.google.genai.types;

/**
 * Stands for an object of the SDK of Gemini, which writes its own JSON.
 *
 * @param json its JSON
 */
public record SdkContent(String json) {
    /** Returns the JSON. */
    public String toJson() {
        return json;
    }
}
