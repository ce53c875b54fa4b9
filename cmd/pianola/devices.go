package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
)

func newDevices() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:     "devices",
		Short:   "List the devices, their modes and limits",
		Long:    "Devices lists the devices that this program was built with, and the reason if one is unavailable.",
		Example: "  pianola devices",
		Args:    exactly(0, "devices takes no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), devicesResult(pianola.Devices()))
			}
			return writeDevices(cmd.OutOrStdout(), pianola.Devices())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// deviceResult is a device in JSON.
type deviceResult struct {
	Device    string   `json:"device"`
	Available bool     `json:"available"`
	Why       string   `json:"why,omitempty"` // the reason if it is not available
	Name      string   `json:"name,omitempty"`
	Detail    string   `json:"detail,omitempty"`
	Memory    uint64   `json:"memory,omitempty"` // bytes, if known
	Limits    string   `json:"limits,omitempty"`
	Modes     []string `json:"modes"`
}

func devicesResult(list []pianola.DeviceStatus) any {
	devices := []deviceResult{}
	for _, d := range list {
		devices = append(devices, deviceResult{
			Device: string(d.Device), Available: d.Available, Why: d.Why, Name: d.Name, Detail: d.Detail,
			Memory: d.Memory, Limits: d.Limits, Modes: modeNames(d.Modes),
		})
	}
	return struct {
		Devices []deviceResult `json:"devices"`
	}{devices}
}

func modeNames(modes []pianola.Mode) []string {
	names := []string{}
	for _, m := range modes {
		names = append(names, string(m))
	}
	return names
}

func writeDevices(w io.Writer, list []pianola.DeviceStatus) error {
	for _, d := range list {
		if !d.Available {
			if _, err := fmt.Fprintf(w, "%-6s  %s\n", d.Device, d.Why); err != nil {
				return err
			}
			continue
		}
		parts := []string{d.Name, d.Detail, d.Limits}
		if d.Memory > 0 {
			parts = append(parts, "memory "+byteSize(d.Memory))
		}
		parts = append(parts, "modes "+strings.Join(modeNames(d.Modes), " "))
		said := parts[:0]
		for _, p := range parts {
			if p != "" {
				said = append(said, p)
			}
		}
		if _, err := fmt.Fprintf(w, "%-6s  %s\n", d.Device, strings.Join(said, "; ")); err != nil {
			return err
		}
	}
	return nil
}
