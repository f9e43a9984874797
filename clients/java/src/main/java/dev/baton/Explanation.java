package dev.baton;

import dev.baton.v1.AgentMatch;
import dev.baton.v1.MatchFactor;
import java.util.Locale;

/** The reasons for the rank of an agent that {@link Agent#findAgents} returns. */
public final class Explanation {
    private Explanation() {}

    /** Returns the reasons, for a person to read: one line for the agent, and one for each factor of its score. */
    public static String of(AgentMatch match) {
        String presence = match.getPresence().name().replace("PRESENCE_", "");
        String full = match.getLoad().getIsFull() ? ", full" : "";
        StringBuilder text = new StringBuilder(String.format(
                Locale.ROOT,
                "%d. %s: %.3f, %s%s",
                match.getRank(),
                match.getAgentId(),
                match.getScore(),
                presence,
                full));
        for (MatchFactor factor : match.getFactorsList()) {
            text.append(String.format(
                    Locale.ROOT,
                    "\n   %-14s %.2f x %.2f = %.3f  %s",
                    factor.getName(),
                    factor.getValue(),
                    factor.getWeight(),
                    factor.getValue() * factor.getWeight(),
                    factor.getText()));
        }
        return text.toString();
    }
}
