package com.openai.core;

import com.openai.models.SdkResponse;

/** Stands for the mappers of the SDK of OpenAI, which has a class of this name and form. */
public final class ObjectMappers {
    private ObjectMappers() {}

    /** Returns the mapper. */
    public static Mapper jsonMapper() {
        return new Mapper();
    }

    /** Stands for the JsonMapper of Jackson. */
    public static final class Mapper {
        /** Returns the JSON of an object. */
        public String writeValueAsString(Object value) {
            return ((SdkResponse) value).json();
        }
    }
}
