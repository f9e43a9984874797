#!/bin/sh
# A table stands for what a real researcher would look up. The task comes as JSON on standard input.
case $(jq -r .context.input.company) in
  North*) growth=15.3 ;;
  South*) growth=11.8 ;;
  *) echo "no figures of this company" >&2; exit 1 ;;
esac
echo "{\"response\": \"it grows by $growth %\", \"numeric_value\": $growth}"
