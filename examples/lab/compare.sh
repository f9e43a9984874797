#!/bin/sh
# Compares the two results that came before. The task comes as JSON on standard input.
jq -c '.context.previous_results
  | {response: "North grows by \(.north.numeric_value) %, South by \(.south.numeric_value) %",
     numeric_value: (10 * (.north.numeric_value - .south.numeric_value) | round / 10)}'
