package dev.baton;

import static org.junit.jupiter.api.Assertions.assertFalse;

import com.google.gson.JsonParser;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.io.TempDir;

/** The scenarios that the clients of all languages run. */
@EnabledIfEnvironmentVariable(named = "BATON_BIN", matches = ".+")
class ScenariosTest {
    @TempDir
    static Path folder;

    private static RealBroker broker;

    @BeforeAll
    static void start() throws Exception {
        broker = new RealBroker(folder).start();
    }

    @AfterAll
    static void stop() throws Exception {
        broker.close();
    }

    @TestFactory
    Stream<DynamicTest> scenarios() throws Exception {
        List<Path> files;
        try (Stream<Path> all = Files.list(Path.of("../scenarios"))) {
            files = all.filter(file -> file.toString().endsWith(".json")).sorted().toList();
        }
        assertFalse(files.isEmpty());
        return files.stream()
                .map(file -> DynamicTest.dynamicTest(file.getFileName().toString(), () -> {
                    var scenario = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
                    try (Scenario playing = new Scenario(broker, scenario)) {
                        playing.play();
                    }
                }));
    }
}
