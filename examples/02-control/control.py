"""Ask engines about themselves and steer them, from ordinary threads.

python examples/02-control/control.py client_addresses.json
"""

import sys

from enginecore_client import OutputKind, SamplingParams, SyncMPClient, UtilityError
from enginecore_client.ops import IsSleeping, Sleep

with SyncMPClient(sys.argv[1], ready_timeout=60) as client:
    print("tasks:", client.get_supported_tasks())
    print("sleeping:", client.is_sleeping())
    print("the same, as a value:", client.call(IsSleeping(), engine=0, timeout=5))
    print("prefix cache reset:", client.reset_prefix_cache())
    try:
        client.call(Sleep(level=0))
    except UtilityError as error:
        print("cannot sleep:", error)
    params = SamplingParams(max_tokens=4, output_kind=OutputKind.FINAL_ONLY)
    (output,) = client.generate([1, 2, 3], params)
    print("tokens:", output.new_token_ids)
