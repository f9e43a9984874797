package dev.baton;

import com.google.protobuf.Timestamp;
import java.time.Duration;
import java.time.Instant;

/** Conversion of times and spans between java.time and protobuf. */
final class Times {
    private Times() {}

    static Duration toDuration(com.google.protobuf.Duration span) {
        return Duration.ofSeconds(span.getSeconds(), span.getNanos());
    }

    static com.google.protobuf.Duration ofDuration(Duration span) {
        return com.google.protobuf.Duration.newBuilder()
                .setSeconds(span.getSeconds())
                .setNanos(span.getNano())
                .build();
    }

    /** Compares by number: a peer's time may be outside the range of java.time. */
    static int compare(Timestamp one, Timestamp other) {
        int seconds = Long.compare(one.getSeconds(), other.getSeconds());
        return seconds != 0 ? seconds : Integer.compare(one.getNanos(), other.getNanos());
    }

    static Instant toInstant(Timestamp time) {
        return Instant.ofEpochSecond(time.getSeconds(), time.getNanos());
    }

    static Timestamp ofInstant(Instant time) {
        return Timestamp.newBuilder()
                .setSeconds(time.getEpochSecond())
                .setNanos(time.getNano())
                .build();
    }
}
