"""Build a worker's parts from the settings. This package alone chooses the implementation of each port.

Reading order
    settings        all settings; load_settings reads them
    build           create, open and close the parts that the settings describe
    worker_parts    one implementation per port, and the activities that use them
    tool_registry   all tools, agents, crews and skills that a worker serves
    memory, task_handlers, knowledge   background services of a worker
"""
