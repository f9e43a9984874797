package dev.baton;

import dev.baton.v1.AgentSpec;
import dev.baton.v1.ModelSpec;
import dev.baton.v1.ThreadRequestEnded;
import java.util.List;
import java.util.Optional;

/**
 * A step of a run of a thread: what it runs with.
 *
 * @param number the number, starting at 1
 * @param spec the spec in force, for the whole step
 * @param model the spec of its model
 * @param isSwitched whether another spec or revision than before is in force
 * @param deactivatePluginIds the plugins to turn off before the step
 * @param activatePluginIds the plugins to turn on before the step
 * @param request the request that ended at the begin of the step; empty for none
 */
public record Step(
        long number,
        AgentSpec spec,
        ModelSpec model,
        boolean isSwitched,
        List<String> deactivatePluginIds,
        List<String> activatePluginIds,
        Optional<ThreadRequestEnded> request) {}
