package com.openai.models;

/**
 * An object of an SDK: only the SDK's mapper writes it.
 *
 * @param json its JSON
 */
public record SdkResponse(String json) {}
