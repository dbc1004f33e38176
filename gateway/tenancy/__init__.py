"""Tenants: who calls, what each may take, and in which order their requests reach the workers.

key -> Tenant            keys, tenants_file, directory
may it?    Account       token_bucket, account
when?      FairQueue     fair_queue, places
on a call  Gate, Caller  gate, and the doors of the two surfaces: grpc_door, http.door
"""
