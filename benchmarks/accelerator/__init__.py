"""Run the tests marked ``gpu`` and measure what watching costs, on the accelerator of this machine; write one page to send back.

``make gpu`` runs it. Nothing here names one kind of accelerator where ``torch.accelerator`` knows the device.
"""
