"""From settings to the parts of a worker: the one place that chooses an implementation for each port.

Reading order
    settings        everything that can be set, and load_settings, which reads it
    build           the parts for these settings, and opening and closing them
    worker_parts    one implementation per port, and the activities made of them
    tool_registry   every tool, agent, crew and skill that a worker serves
    memory, task_handlers, knowledge   what runs beside a worker
"""
